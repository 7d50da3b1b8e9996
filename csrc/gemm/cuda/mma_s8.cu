#include <algorithm>

#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/mma_s8.h"
#include "gemm/cuda/ptx/mma.cuh"
#include "gemm/cuda/tile/fragments.cuh"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 256, kRows = 8 * kWarpRows;  // 8 warps of 32 rows x 128 columns
constexpr int kRowFragments = kWarpRows / 16;
constexpr int kCycles = 64;  // of one position per unit: two words
constexpr int kUnits = 2;    // per stage
constexpr int kUnitBytes = kTileColumns * kCycles;
constexpr int64_t kLeastStages = 16;  // of a part, when the K axis is split
constexpr int kBuffers = 2 * kUnits * kUnitBytes, kSums = kRows * kTileColumns * 4;  // bytes
static_assert(kThreads == kTileColumns * kUnits, "a thread expands one column of one unit");

// A stage is 128 cycles of one position or, of streams that fit one unit (kShort), two positions.
bool is_short(const GemmProblem& p) { return p.tables.length <= kCycles; }
__host__ __device__ int units_per_position(const GemmProblem& p, bool is_short) {
  return is_short ? 1 : (p.tables.length + 2 * kCycles - 1) / (2 * kCycles) * 2;
}
__host__ __device__ int64_t stages_per_chunk(const GemmProblem& p, bool is_short) {
  return (p.chunk * units_per_position(p, is_short) + kUnits - 1) / kUnits;
}

// Where a stage's codes of b lie on the K axis, and which cycles. Steps are additions: the loop has
// no time for divisions.
struct Stage {
  int position, piece;  // first position, in its chunk, and first piece of 64 cycles
  int64_t column;       // the position over all chunks
};

// The order of cycles within a product is free. A k32 step takes one 32-bit word of the patterns:
// lane t of a fragment holds the bytes of bits 2t, 2t + 8, 2t + 16, 2t + 24 and of 2t + 1 and so
// on, which a shift and a mask cut out of the word.
// kKeeps: sums of earlier chunks wait in shared memory instead of in the output.
template <bool kShort, bool kKeeps>
struct Task {
  const GemmProblem& p;
  uint8_t* shared;
  int64_t batch, first_row, first_column;
  int pieces, positions;    // units of a position; positions of a chunk
  const int16_t* b_codes;   // of the column that this thread expands
  const int16_t* a_cycles;  // a stage of this thread's first row: the others are 8 rows apart
  int a_place;              // in the row
  int rows;                 // that exist from there on
  int shift;                // 2**shift positions per stage of a's codes
  int lane_mask;            // lanes - 1 where that is a mask and positions follow it, else -1
  int64_t a_stage;          // elements from one stage of a's codes to the next
  bool column_exists, bad = false;
  Fragments<kRowFragments> acc;

  __device__ Task(const GemmProblem& problem, uint8_t* buffers, int64_t tile, int64_t row)
      : p(problem), shared(buffers), first_row(row) {
    const int64_t tiles = (p.m + kTileColumns - 1) / kTileColumns;
    batch = tile / tiles;
    first_column = tile % tiles * kTileColumns;
    pieces = units_per_position(p, kShort);
    positions = static_cast<int>(p.chunk);
    column_exists = column() < p.m;
    b_codes = p.b_codes + (batch * p.m + column()) * p.d;
    const int64_t mine = row + threadIdx.x / 32 * kWarpRows + threadIdx.x % 32 / 4;
    a_cycles = p.a_cycles +
               (batch * p.a_layout.stages * p.a_layout.rows_padded + mine) * p.a_layout.positions;
    rows = static_cast<int>(min(p.a_layout.rows_padded - mine, int64_t{kRows}));
    shift = __ffs(p.a_layout.positions) - 1;
    a_stage = p.a_layout.rows_padded << shift;
    const bool masked = !p.tables.lane_of && (p.tables.lanes & (p.tables.lanes - 1)) == 0;
    lane_mask = masked ? static_cast<int>(p.tables.lanes - 1) : -1;
  }

  // The column and unit that this thread expands.
  __device__ int64_t column() const { return first_column + threadIdx.x % kTileColumns; }
  __device__ static int unit() { return threadIdx.x / kTileColumns; }

  __device__ Stage stage_at(int64_t stage) const {
    const int64_t per_chunk = stages_per_chunk(p, kShort), chunk = stage / per_chunk;
    const int64_t within = stage % per_chunk * kUnits;
    const int position = static_cast<int>(within / pieces);
    return {position, static_cast<int>(within % pieces), chunk * p.chunk + position};
  }
  // To the next stage, and with it to its cycles: where a position ends, they go on in the same
  // stage of a's codes, or with the first of the next one.
  __device__ void advance(Stage& stage) {
    constexpr int kStep = kShort ? kUnits : 1;
    if (!kShort) {
      stage.piece += kUnits;
      if (stage.piece < pieces) return;
      stage.piece = 0;
    }
    stage.position += kStep;
    stage.column += kStep;
    if (stage.position >= positions) {  // the next chunk
      stage.column -= stage.position - positions;
      stage.position = 0;
    }
    const int within = stage.position & ((1 << shift) - 1);
    a_cycles += within == 0 ? a_stage : 0;
    set_place(within);
  }

  __device__ void set_place(int within) {
    a_place = staged_position(threadIdx.x % 32 / 4, within, 1 << shift);
  }

  __device__ int load_code(const Stage& stage) const {
    const int mine = kShort ? unit() : 0;
    const bool exists =
        column_exists && stage.position + mine < positions && stage.column + mine < p.d;
    return exists ? b_codes[stage.column + mine] : 0;
  }
  // Code 0, and with it whatever does not exist, has no ones in any position.
  __device__ uint2 load_bits(const Stage& stage, int code) const {
    const DeviceTables& t = p.tables;
    const int position = kShort ? min(stage.position + unit(), positions - 1) : stage.position;
    const int piece = kShort ? 0 : stage.piece + unit();
    const auto lane = static_cast<uint32_t>(
        lane_mask >= 0 ? position & lane_mask
                       : static_cast<int>(lane_of_position(t.lane_of, t.lanes, position)));
    // The tables hold less than 2^32 pairs of words.
    const uint32_t entry = lane * (t.levels + 1) + abs(code);
    return __ldg(reinterpret_cast<const uint2*>(t.b_bits) + (entry * (t.words / 2) + piece));
  }

  // [unit][column][lane t][two words]; the lanes' places turn so that neighbouring columns' writes
  // and a fragment's reads both touch all banks.
  __device__ static int place(int column, int t) { return column * 4 + (t ^ (column / 2 % 4)); }
  __device__ void store(const uint2& bits, int code, int stage) const {
    auto* to = reinterpret_cast<uint4*>(buffer(stage, unit()));
    const uint32_t sign = code < 0 ? 255u : 1u;
    constexpr uint32_t kLow = 0x01010101u;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      to[place(threadIdx.x % kTileColumns, t)] =
          make_uint4((bits.x >> (2 * t) & kLow) * sign, (bits.x >> (2 * t + 1) & kLow) * sign,
                     (bits.y >> (2 * t) & kLow) * sign, (bits.y >> (2 * t + 1) & kLow) * sign);
    }
  }

  // Signed cycles of this thread's four rows; of short streams the second position's in the high
  // halves: a stage of a's codes holds both. Past a chunk's end they meet zeros.
  __device__ void load_cycles(int (&k)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int16_t* from = a_cycles + (8 * i << shift) + a_place;
      k[i] = 8 * i < rows ? from[0] : 0;
      if (kShort && 8 * i < rows) k[i] = (k[i] & 0xffff) | from[1] << 16;
    }
  }

  __device__ void multiply(const uint8_t* b, const int (&cycles)[4], int unit, int piece) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t a[2][kRowFragments][4];  // by k32 step
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // rows g + 8 i
      const int k = !kShort ? cycles[i] : (unit == 0 ? cycles[i] << 16 : cycles[i]) >> 16;
      const int left = abs(k) - kCycles * piece;              // of the cycles from this piece on
      const uint32_t on = k < 0 ? 0xffffffffu : 0x01010101u;  // four times -1 or 1
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        // Byte n is on where k > first cycle of the word + 8 n + 2t + odd.
        const int bits = (left + 7 - 2 * t - odd) & ~7;
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const int ones = max(bits - 32 * step, 0);
          a[step][i / 2][2 * odd + i % 2] = __funnelshift_lc(on, 0u, ones);
        }
      }
    }
    const auto* quads = reinterpret_cast<const uint4*>(b);
#pragma unroll
    for (int first = 0; first < kColumnFragments; first += 4) {
      uint4 q[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) q[i] = quads[place(8 * (first + i) + g, t)];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int mf = 0; mf < kRowFragments; ++mf) {
          mma_s8(acc.sum[mf][first + i], a[0][mf], q[i].x, q[i].y);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int mf = 0; mf < kRowFragments; ++mf) {
          mma_s8(acc.sum[mf][first + i], a[1][mf], q[i].z, q[i].w);
        }
      }
    }
  }

  __device__ uint8_t* buffer(int stage, int unit) const {
    return shared + (stage % 2 * kUnits + unit) * kUnitBytes;
  }

  __device__ void run(KRange range) {
    const int count = static_cast<int>(range.last - range.first);
    Stage next = stage_at(range.first);
    int k[4], piece = next.piece, code = checked_code(p, load_code(next), bad);
    store(load_bits(next, code), code, 0);
    const int64_t a_stages =
        range.first / stages_per_chunk(p, kShort) * p.a_layout.stages_per_chunk;
    a_cycles += (a_stages + (next.position >> shift)) * a_stage;
    set_place(next.position & ((1 << shift) - 1));
    load_cycles(k);
    advance(next);
    int stored = load_code(next);  // not checked yet
    acc.clear();
    int left = static_cast<int>(range.per_write);
    // The two warps of a scheduler take turns: one expands while the other multiplies.
    const int turn = threadIdx.x < kThreads / 2 ? 0 : 1;
    for (int stage = 0; stage < count; ++stage) {
      __syncthreads();
      int next_k[4] = {}, next_piece = 0, unit = 0;
#pragma unroll 1
      for (int step = 0; step <= kUnits; ++step) {
        if (step != turn) {
          multiply(buffer(stage, unit), k, unit, kShort ? 0 : piece + unit);
          ++unit;
        } else if (stage + 1 < count) {
          code = checked_code(p, stored, bad);
          const uint2 bits = load_bits(next, code);
          next_piece = next.piece;
          load_cycles(next_k);
          advance(next);
          stored = load_code(next);
          store(bits, code, stage + 1);
        }
      }
      if (--left == 0) {
        if (p.damaged) {  // flags of all columns before the outputs
          if (bad && column_exists) mark_damaged(p, batch, column());
          __syncthreads();
        }
        const TileAt at{batch, first_row + threadIdx.x / 32 * kWarpRows, first_column};
        if constexpr (kKeeps) {
          keep_tile<false, kRowFragments>(
              p, at, range.chunk++, acc,
              {reinterpret_cast<float2*>(shared + kBuffers) + threadIdx.x, kThreads});
        } else {
          write_tile<false, false>(p, at, range.chunk++, range.slot++, acc);
        }
        acc.clear();
        left = static_cast<int>(range.per_write);
      }
      piece = next_piece;
#pragma unroll
      for (int i = 0; i < 4; ++i) k[i] = next_k[i];
    }
  }
};

// grid: (blocks of rows, tiles, parts)
template <bool kShort, bool kKeeps>
__global__ void __launch_bounds__(kThreads, 1) gemm_s8(const __grid_constant__ GemmProblem p) {
  extern __shared__ __align__(16) uint8_t shared[];
  Task<kShort, kKeeps> task(p, shared, blockIdx.y, int64_t{blockIdx.x} * kRows);
  task.run(KRange(p, blockIdx.z, gridDim.z, stages_per_chunk(p, kShort)));
}

template <bool kShort, bool kKeeps>
void launch(const GemmProblem& p, const dim3& grid, cudaStream_t stream) {
  const auto kernel = gemm_s8<kShort, kKeeps>;
  constexpr int kBytes = kBuffers + (kKeeps ? kSums : 0);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  kernel<<<grid, kThreads, kBytes, stream>>>(p);
}

}  // namespace

std::string mma_s8_refuses(const GemmProblem& p, const DeviceLimits& device) {
  if (device.major < 8) return "it needs compute capability 8.0";
  if (p.tables.b_bits == nullptr) return "the bit tables of this config do not fit in memory";
  if (p.chunk * p.tables.length >= (int64_t{1} << 31)) return "sums need more than 32 bits";
  if (stages_per_chunk(p, is_short(p)) * p.chunks >= (int64_t{1} << 31)) {
    return "its K axis is too long";
  }
  if (column_tiles(p) > 65535) return "it has more tiles than a grid holds";
  return "";
}

int64_t mma_s8_parts(const GemmProblem& p, const DeviceLimits& device) {
  const int64_t blocks = column_tiles(p) * ((p.n + kRows - 1) / kRows);
  const int64_t most = p.chunks > 1 ? p.chunks : stages_per_chunk(p, is_short(p)) / kLeastStages;
  return std::max<int64_t>(1, std::min({device.multiprocessors / blocks, most, int64_t{65535}}));
}

void mma_s8_gemm(const GemmProblem& p, const DeviceLimits& device, cudaStream_t stream) {
  int64_t parts = 1;
  if (p.partial) parts = p.chunks > 1 ? mma_s8_parts(p, device) : p.slots;
  const dim3 grid(static_cast<unsigned>((p.n + kRows - 1) / kRows),
                  static_cast<unsigned>(column_tiles(p)), static_cast<unsigned>(parts));
  const bool keeps = p.dequantizer.kind == Epilogue::chunk && !p.partial &&
                     p.chunk * p.tables.length < kSmallSum &&
                     kBuffers + kSums <= device.shared_memory;
  if (is_short(p)) {
    keeps ? launch<true, true>(p, grid, stream) : launch<true, false>(p, grid, stream);
  } else {
    keeps ? launch<false, true>(p, grid, stream) : launch<false, false>(p, grid, stream);
  }
}

}  // namespace scmp::cuda
