#include <algorithm>

#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/mma_s8.h"
#include "gemm/cuda/ptx/mma.cuh"
#include "gemm/cuda/tile/fragments.cuh"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 128, kRows = 4 * kWarpRows;  // 4 warps of 32 rows x 128 columns
constexpr int kPerMultiprocessor = 2;
constexpr int kCycles = 64;                           // of one position per unit: two k32 steps
constexpr int kUnitBytes = kTileColumns * kCycles;
constexpr int kTasks = kTileColumns * 4 / kThreads;   // a task: 16 cycles of one column
constexpr int64_t kLeastUnits = 32;                   // of a part, when the K axis is split

// Units (a position's 64 cycles) of one chunk.
__host__ __device__ int64_t units_per_position(const GemmProblem& p) {
  return (p.tables.length + kCycles - 1) / kCycles;
}

// b of one unit on its way into shared memory: [column][lane t][16 cycles], so that lane t of a
// fragment reads its cycles 16t .. 16t + 15 of both k32 steps at once. The order of cycles is free.
struct BUnit {
  const GemmProblem& p;
  int64_t batch, first_column;
  int code[kTasks];      // of the unit after
  uint32_t bits[kTasks];  // 16 cycles each
  bool negative[kTasks];

  __device__ void load_codes(int64_t chunk, int64_t position) {
    const int64_t count = chunk_columns(p, chunk);
#pragma unroll
    for (int j = 0; j < kTasks; ++j) {
      const int64_t column = first_column + (threadIdx.x + j * kThreads) / 4;
      code[j] = column < p.m && position < count
                    ? b_codes_at(p, batch, chunk, column)[position]
                    : 0;
    }
  }
  __device__ void load_bits(int64_t position, int64_t piece) {
    const DeviceTables& t = p.tables;
    const int64_t lane =
        position < p.chunk ? lane_of_position(t.lane_of, t.lanes, position) : int64_t{0};
    const auto* from = reinterpret_cast<const uint16_t*>(t.b_bits) +
                       lane * (t.levels + 1) * t.words * 2 + piece * 4 + threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < kTasks; ++j) {
      negative[j] = code[j] < 0;
      bits[j] = __ldg(from + int64_t{min(abs(code[j]), t.levels)} * t.words * 2);
    }
  }
  __device__ void store(uint8_t* shared) const {
#pragma unroll
    for (int j = 0; j < kTasks; ++j) {
      const uint32_t sign = negative[j] ? 255u : 1u;
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // four bits to four bytes
        words[i] = (((bits[j] >> (4 * i)) & 0xfu) * 0x00204081u & 0x01010101u) * sign;
      }
      reinterpret_cast<uint4*>(shared)[threadIdx.x + j * kThreads] =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
};

struct Task {
  const GemmProblem& p;
  uint8_t* shared;
  int64_t batch, first_row, first_column;
  int64_t pieces, per_chunk;  // units of a position; of a chunk
  Fragments acc;

  __device__ void load_cycles(int64_t chunk, int64_t position, int (&k)[4]) const {
    const int64_t row = first_row + threadIdx.x / 32 * kWarpRows + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) k[i] = a_cycles_at(p, batch, chunk, row + 8 * i, position);
  }

  // Cycles first .. first + 3 of a thermometer as bytes of the sign.
  __device__ static uint32_t thermometer_bytes(int k, int first) {
    const int ones = max(abs(k) - first, 0) * 8;
    return __funnelshift_lc(0xffffffffu, 0u, ones) & (k < 0 ? 0xffffffffu : 0x01010101u);
  }

  __device__ void multiply(const uint8_t* b, const int (&k)[4], int piece) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t a[2][kRowFragments][4];  // by k32 step
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // rows g + 8 i
        const int first = kCycles * piece + 16 * t + 8 * step;
        a[step][i / 2][i % 2] = thermometer_bytes(k[i], first);
        a[step][i / 2][2 + i % 2] = thermometer_bytes(k[i], first + 4);
      }
    }
    const auto* quads = reinterpret_cast<const uint4*>(b);
#pragma unroll
    for (int first = 0; first < kColumnFragments; first += 4) {
      uint4 q[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) q[i] = quads[(8 * (first + i) + g) * 4 + t];
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

  // A unit's place on the K axis, stepping by one.
  struct At {
    int64_t chunk, position, piece;
    __device__ void next(int64_t pieces, int64_t positions) {
      if (++piece < pieces) return;
      piece = 0;
      if (++position < positions) return;
      position = 0;
      ++chunk;
    }
  };

  __device__ void run(KRange range) {
    const int64_t positions = per_chunk / pieces;
    At at{range.first / per_chunk, range.first % per_chunk / pieces, range.first % pieces};
    At ahead = at;
    BUnit b{p, batch, first_column};
    b.load_codes(at.chunk, at.position);
    b.load_bits(at.position, at.piece);
    b.store(shared);
    ahead.next(pieces, positions);
    if (ahead.chunk < p.chunks) b.load_codes(ahead.chunk, ahead.position);
    int k[4];
    load_cycles(at.chunk, at.position, k);
    acc.clear();
    int64_t left = range.per_write;
    for (int64_t unit = range.first; unit < range.last; ++unit) {
      __syncthreads();
      const bool more = unit + 1 < range.last;
      int next_k[4];
      const At now = ahead;  // of unit + 1
      if (more) {
        b.load_bits(now.position, now.piece);
        load_cycles(now.chunk, now.position, next_k);
        ahead.next(pieces, positions);
        if (unit + 2 < range.last) b.load_codes(ahead.chunk, ahead.position);
      }
      multiply(shared + (unit - range.first) % 2 * kUnitBytes, k, static_cast<int>(at.piece));
      if (more) b.store(shared + (unit + 1 - range.first) % 2 * kUnitBytes);
      if (--left == 0) {
        write_tile(p, {batch, first_row + threadIdx.x / 32 * kWarpRows, first_column},
                   range.chunk++, range.slot++, acc);
        acc.clear();
        left = range.per_write;
      }
      at = now;
#pragma unroll
      for (int i = 0; i < 4; ++i) k[i] = next_k[i];
    }
  }
};

// grid: (blocks of rows, tiles, parts)
__global__ void __launch_bounds__(kThreads, kPerMultiprocessor)
    gemm_s8(const __grid_constant__ GemmProblem p) {
  __shared__ __align__(16) uint8_t shared[2 * kUnitBytes];
  const int64_t tiles = (p.m + kTileColumns - 1) / kTileColumns, pieces = units_per_position(p);
  const int64_t per_chunk = p.chunk * pieces;
  Task task{p,
            shared,
            blockIdx.y / tiles,
            int64_t{blockIdx.x} * kRows,
            blockIdx.y % tiles * kTileColumns,
            pieces,
            per_chunk};
  task.run(KRange(p, blockIdx.z, gridDim.z, per_chunk));
}

int64_t tiles_of(const GemmProblem& p) {
  return p.batches * ((p.m + kTileColumns - 1) / kTileColumns);
}

}  // namespace

std::string mma_s8_refuses(const GemmProblem& p, const DeviceLimits& device) {
  if (device.major < 8) return "it needs compute capability 8.0";
  if (p.tables.b_bits == nullptr) return "the bit tables of this config do not fit in memory";
  if (p.chunk * p.tables.length >= (int64_t{1} << 31)) return "sums need more than 32 bits";
  if (tiles_of(p) > 65535) return "it has more tiles than a grid holds";
  return "";
}

int64_t mma_s8_parts(const GemmProblem& p, const DeviceLimits& device) {
  const int64_t blocks = tiles_of(p) * ((p.n + kRows - 1) / kRows);
  const int64_t wanted = device.multiprocessors * kPerMultiprocessor / blocks;
  const int64_t most = p.chunks > 1 ? p.chunks : p.chunk * units_per_position(p) / kLeastUnits;
  return std::max<int64_t>(1, std::min({wanted, most, int64_t{65535}}));
}

void mma_s8_gemm(const GemmProblem& p, const DeviceLimits& device, cudaStream_t stream) {
  int64_t parts = 1;
  if (p.partial) parts = p.chunks > 1 ? mma_s8_parts(p, device) : p.slots;
  const dim3 grid(static_cast<unsigned>((p.n + kRows - 1) / kRows),
                  static_cast<unsigned>(tiles_of(p)), static_cast<unsigned>(parts));
  gemm_s8<<<grid, kThreads, 0, stream>>>(p);
}

}  // namespace scmp::cuda
