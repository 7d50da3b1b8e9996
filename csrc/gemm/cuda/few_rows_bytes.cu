#include <type_traits>

#include "common/dependent_launch.cuh"
#include "common/shared_memory.cuh"
#include "gemm/cuda/few_rows_bytes.h"
#include "gemm/cuda/few_rows_cut.h"
#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/ptx/cp_async.cuh"

namespace scmp::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kColumns = kThreads;  // of the output per pass: a thread has one
constexpr int kRowsTogether = 4;
constexpr int kTableRows = 256;  // in shared memory: positions times rows of a
constexpr int kLeastSlice = 16;
constexpr int kPiece = 64;                     // positions whose codes are fetched together
constexpr int kPieceStride = 2 * kPiece + 16;  // bytes; an odd number of 16, against conflicts
constexpr int kPieces = 2;                     // of a warp under way

FewRowsCut cut_of(const GemmProblem& p) {
  FewRowsCut cut(p, kRowsTogether, kTableRows, kLeastSlice,
                 [](int rows, int slice) { return rows * slice <= kTableRows; });
  cut.shared_bytes = kWarps * kPieces * 32 * kPieceStride + 2 * cut.slice * cut.rows +
                     cut.slice * cut.rows * count_stride(p.tables.levels);
  return cut;
}

// Two signed 16-bit factors times two unsigned bytes, added to a sum. PTX ISA, dp2a.
__device__ __forceinline__ int multiply_add_pair(uint32_t factors, uint32_t counts, int sum) {
  asm("dp2a.lo.s32.u32 %0, %1, %2, %0;" : "+r"(sum) : "r"(factors), "r"(counts));
  return sum;
}

// Of both halves of a word: all ones where negative.
__device__ __forceinline__ uint32_t sign_masks(uint32_t word) {
  uint32_t masks;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(masks) : "r"(word));
  return masks;
}

// A block's part of the work, and its share of shared memory.
template <int kRows, int kStride>
struct Slice {
  const GemmProblem& p;
  int64_t batch, first_row, chunk, first;  // first: position in the chunk
  int positions, padded;                   // padded: a multiple of 8
  uint8_t* counts;                         // [position][row of a][code]
  uint16_t* signs;                         // [row of a][position] all ones where a is negative
  int slice;

  // Rows of the table: those of a's cycles; zeros past the end. A warp takes 32 of them.
  __device__ void stage_tables() const {
    constexpr int kEach = kStride / 16;
    const DeviceTables& t = p.tables;
    const int total = padded * kRows;
    for (int base = threadIdx.x / 32 * 32; base < total; base += kThreads) {
      const int lane = threadIdx.x % 32, i = base + lane, position = i / kRows, row = i % kRows;
      uint32_t from = 0;  // bytes
      if (i < total) {
        int k = 0;
        int64_t sequence = 0;
        if (position < positions && first_row + row < p.n) {
          k = a_cycles_at(p, batch, chunk, first_row + row, first + position);
          sequence = lane_of_position(t.lane_of, t.lanes, first + position);
        }
        signs[row * slice + position] = k < 0 ? 0xffff : 0;
        from = static_cast<uint32_t>(sequence * (t.length + 1) + abs(k)) * kStride;
      }
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        const int at = 32 * j + lane, entry = at / kEach, piece = at % kEach * 16;
        const uint32_t begin = __shfl_sync(~0u, from, entry) + piece;
        if (base + entry < total) {
          cp_async_16(counts + (base + entry) * kStride + piece, t.counts + begin, true);
        }
      }
    }
  }
};

// grid: (blocks of columns, slices, batches * groups of rows)
template <int kRows, int kStride>
__global__ void __launch_bounds__(kThreads, 2)
    few_rows_bytes(const __grid_constant__ GemmProblem p, int slice, int64_t per_chunk,
                   int64_t row_groups, int64_t columns_per_block, bool aligned) {
  extern __shared__ __align__(16) uint8_t shared[];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint8_t* pieces = shared + warp * kPieces * 32 * kPieceStride;
  Slice<kRows, kStride> s{p};
  s.slice = slice;
  s.signs = reinterpret_cast<uint16_t*>(shared + kWarps * kPieces * 32 * kPieceStride);
  s.counts = reinterpret_cast<uint8_t*>(s.signs + slice * kRows);
  s.chunk = blockIdx.y / per_chunk;
  s.first = blockIdx.y % per_chunk * slice;
  s.batch = blockIdx.z / row_groups;
  s.first_row = blockIdx.z % row_groups * kRows;
  s.positions =
      static_cast<int>(max(int64_t{0}, min(int64_t{slice}, chunk_columns(p, s.chunk) - s.first)));
  s.padded = (s.positions + 7) / 8 * 8;
  const int64_t begin = blockIdx.x * columns_per_block, end = min(p.m, begin + columns_per_block);
  const int per_pass = max(1, (s.positions + kPiece - 1) / kPiece);
  const int passes = static_cast<int>((end - begin + kColumns - 1) / kColumns);
  const int count = passes * per_pass;

  // Codes of this warp's 32 columns at a piece of the slice; zeros past its end.
  const auto fetch = [&](int i) {
    if (i < count) {
      const int64_t column = begin + i / per_pass * kColumns + 32 * warp;
      const int start = i % per_pass * kPiece, left = s.positions - start;
      const int columns = static_cast<int>(min(int64_t{32}, end - column));
      uint8_t* to = pieces + i % kPieces * 32 * kPieceStride;
      const int16_t* from = b_codes_at(p, s.batch, s.chunk, min(column, end - 1)) + s.first + start;
      if (aligned) {
        constexpr int kLanes = kPiece / 8;  // 16 bytes each, side by side
        const int row = lane / kLanes, at = lane % kLanes * 8;
        const bool exists = at < left;
#pragma unroll
        for (int j = 0; j < kLanes; ++j) {
          const int r = row + 32 / kLanes * j;
          cp_async_16(to + r * kPieceStride + 2 * at,
                      r < columns && exists ? from + r * p.d + at : from, r < columns && exists);
        }
      } else {
#pragma unroll 1
        for (int j = lane; j < 32 * kPiece; j += 32) {
          const int r = j / kPiece, at = j % kPiece;
          reinterpret_cast<int16_t*>(to + r * kPieceStride)[at] =
              r < columns && at < left ? from[r * p.d + at] : int16_t{0};
        }
      }
    }
    cp_async_commit();
  };
  // A prepared b was there before the kernels of this call.
  if (!p.b_ready) wait_for_previous_kernel();
#pragma unroll
  for (int i = 0; i < kPieces; ++i) fetch(i);
  if (p.b_ready) wait_for_previous_kernel();
  s.stage_tables();
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();

  const uint32_t most = static_cast<uint32_t>(p.tables.levels) * 0x10001u;
  int sum[kRows] = {};
  uint32_t bad = 0;
  for (int i = 0; i < count; ++i) {
    cp_async_wait<kPieces - 1>();
    __syncwarp();
    const int start = i % per_pass * kPiece;
    const uint8_t* codes = pieces + i % kPieces * 32 * kPieceStride + lane * kPieceStride;
    const int groups = min(kPiece, s.padded - start) / 8;
#pragma unroll 2
    for (int g = 0; g < groups; ++g) {
      const uint4 eight = *reinterpret_cast<const uint4*>(codes + 16 * g);
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
      const int position = start + 8 * g;
      const uint8_t* table = s.counts + position * kRows * kStride;
      uint32_t index[4], masks[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        masks[j] = sign_masks(words[j]);
        const uint32_t magnitude = __vabs2(words[j]);
        index[j] = __vminu2(magnitude, most);
        // Codes that no quantizer makes; unipolar ones have no sign.
        bad |= (magnitude ^ index[j]) | (p.unipolar ? masks[j] : 0);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint4 flips = *reinterpret_cast<const uint4*>(s.signs + r * slice + position);
        const uint32_t flip[4] = {flips.x, flips.y, flips.z, flips.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint8_t* low = table + (2 * j * kRows + r) * kStride;
          const uint8_t* high = low + kRows * kStride;
          const uint32_t counts = low[index[j] & 0xffff] | high[index[j] >> 16] << 8;
          sum[r] = multiply_add_pair((masks[j] ^ flip[j]) | 0x00010001u, counts, sum[r]);
        }
      }
    }
    __syncwarp();
    fetch(i + kPieces);
    if ((i + 1) % per_pass != 0) continue;
    const int64_t column = begin + i / per_pass * kColumns + threadIdx.x;
    if (column < end) {
      if (bad != 0) mark_damaged(p, s.batch, column);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (s.first_row + r < p.n) {
          p.partial[((blockIdx.y * p.batches + s.batch) * p.n + s.first_row + r) * p.m + column] =
              sum[r];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sum[r] = 0;
    bad = 0;
  }
}

template <int kRows, int kStride>
void launch(const GemmProblem& p, const FewRowsCut& cut, const DeviceLimits& device,
            cudaStream_t stream) {
  // One limit for all problems: threads may launch the same kernel at the same time.
  allow_shared_memory<few_rows_bytes<kRows, kStride>>(device.shared_memory);
  const FewRowsGrid g(p, cut, kColumns, device);
  launch_dependent<few_rows_bytes<kRows, kStride>>(g.grid, dim3(kThreads), cut.shared_bytes, stream,
                                                   p, cut.slice, cut.per_chunk, cut.row_groups,
                                                   g.columns_per_block, g.aligned);
}

}  // namespace

std::string few_rows_bytes_refuses(const GemmProblem& p, const DeviceLimits& device) {
  if (p.n > kMostFewRows) return "a has more than 16 rows";
  if (p.tables.counts == nullptr) return "the counts of this config do not fit in bytes";
  return cut_of(p).refuses(p, device);
}

int64_t few_rows_bytes_parts(const GemmProblem& p) { return cut_of(p).per_chunk; }

void few_rows_bytes_gemm(const GemmProblem& p, const DeviceLimits& device, cudaStream_t stream) {
  const FewRowsCut cut = cut_of(p);
  const auto launch_rows = [&](auto rows) {
    constexpr int kRows = decltype(rows)::value;
    count_stride(p.tables.levels) == kNarrowCounts
        ? launch<kRows, kNarrowCounts>(p, cut, device, stream)
        : launch<kRows, kWideCounts>(p, cut, device, stream);
  };
  switch (cut.rows) {
    case 1:
      return launch_rows(std::integral_constant<int, 1>{});
    case 2:
      return launch_rows(std::integral_constant<int, 2>{});
    default:
      return launch_rows(std::integral_constant<int, 4>{});
  }
}

}  // namespace scmp::cuda
