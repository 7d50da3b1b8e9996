#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/shared_memory.cuh"
#include "gemm/cuda/few_rows.h"
#include "gemm/cuda/few_rows_bytes.h"
#include "gemm/cuda/few_rows_cut.h"
#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/mma/patterns.cuh"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kRowsTogether = 8;               // rows of a that share a table
constexpr int kColumnsPerPass = kThreads / 4;  // of the output: 8 a warp, 4 threads each
constexpr int kCodes = kAlignedCodes;          // of b that a thread has together
constexpr int kLongestSlice = 128;
constexpr int kTableBytes = 96 << 10;  // every GPU since sm_80 gives a block as much

int table_bytes(const GemmProblem& p, int rows, int slice) {
  const int64_t bytes = int64_t{p.tables.levels + 1} * rows * slice * 2;
  return static_cast<int>(std::min<int64_t>(bytes, INT32_MAX));
}

FewRowsCut cut_of(const GemmProblem& p) {
  FewRowsCut cut(p, kRowsTogether, kLongestSlice, 1,
                 [&](int rows, int slice) { return table_bytes(p, rows, slice) <= kTableBytes; });
  cut.shared_bytes = table_bytes(p, cut.rows, cut.slice);
  return cut;
}

template <int kRows>
struct alignas(2 * kRows) Entry {
  int16_t count[kRows];
};

// table[position][code of b]: signed counts with kRows rows of a. A warp takes a position, a lane
// every 32nd code; kGroup words of a bit pattern are read at once, those of kCodesAtOnce codes
// before the first is used.
template <int kRows, int kGroup>
__device__ void fill_table(const GemmProblem& p, Entry<kRows>* table, int64_t batch, int64_t chunk,
                           int64_t first_row, int64_t first, int positions) {
  constexpr int kCodesAtOnce = 5;
  const DeviceTables& t = p.tables;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, codes = t.levels + 1;
#pragma unroll 1
  for (int i = warp; i < positions; i += kThreads / 32) {
    int k[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      k[r] = first_row + r < p.n ? a_cycles_at(p, batch, chunk, first_row + r, first + i) : 0;
    }
    const int64_t source = lane_of_position(t.lane_of, t.lanes, first + i);
    const uint32_t* bits = t.b_bits + source * codes * t.words;
#pragma unroll 1
    for (int start = lane; start < codes; start += 32 * kCodesAtOnce) {
      int count[kCodesAtOnce][kRows] = {};
#pragma unroll 1
      for (int w = 0; w < t.words; w += kGroup) {
        uint32_t word[kCodesAtOnce][kGroup];
#pragma unroll
        for (int n = 0; n < kCodesAtOnce; ++n) {
          const uint32_t* from = bits + min(start + 32 * n, codes - 1) * t.words + w;
          if constexpr (kGroup == 4) {
            const uint4 four = __ldg(reinterpret_cast<const uint4*>(from));
            word[n][0] = four.x;
            word[n][1] = four.y;
            word[n][2] = four.z;
            word[n][3] = four.w;
          } else {
            const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
            word[n][0] = two.x;
            word[n][1] = two.y;
          }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int j = 0; j < kGroup; ++j) {
            const uint32_t on = thermometer(abs(k[r]), w + j);
#pragma unroll
            for (int n = 0; n < kCodesAtOnce; ++n) count[n][r] += __popc(word[n][j] & on);
          }
        }
      }
#pragma unroll
      for (int n = 0; n < kCodesAtOnce; ++n) {
        if (start + 32 * n >= codes) break;
        Entry<kRows> entry;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          entry.count[r] = static_cast<int16_t>(k[r] < 0 ? -count[n][r] : count[n][r]);
        }
        table[i * codes + start + 32 * n] = entry;
      }
    }
  }
}

// Codes of one column that a thread holds: kReads groups of kCodes, 4 * kCodes apart.
struct Codes {
  static constexpr int kReads = kLongestSlice / (4 * kCodes);
  alignas(16) int16_t code[kReads][kCodes];

  __device__ void read(const int16_t* from, int positions, bool aligned) {
    const int part = threadIdx.x % 4;
    if (aligned) {
#pragma unroll
      for (int m = 0; m < kReads; ++m) {
        const int i = (part + 4 * m) * kCodes;
        uint4 raw = make_uint4(0, 0, 0, 0);
        if (i < positions) raw = __ldcs(reinterpret_cast<const uint4*>(from + i));
        *reinterpret_cast<uint4*>(code[m]) = raw;
      }
    } else {
#pragma unroll
      for (int m = 0; m < kReads; ++m) {
#pragma unroll
        for (int j = 0; j < kCodes; ++j) {
          const int i = (part + 4 * m) * kCodes + j;
          code[m][j] = i < positions ? from[i] : int16_t{0};
        }
      }
    }
  }
};

// grid: (blocks of columns, slices, batches * groups of rows)
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    few_rows(const __grid_constant__ GemmProblem p, int slice, int64_t per_chunk,
             int64_t row_groups, int64_t columns_per_block, bool aligned) {
  wait_for_previous_kernel();
  extern __shared__ __align__(16) uint8_t shared[];
  auto* table = reinterpret_cast<Entry<kRows>*>(shared);
  const int64_t chunk = blockIdx.y / per_chunk, first = blockIdx.y % per_chunk * slice;
  const int64_t batch = blockIdx.z / row_groups, first_row = blockIdx.z % row_groups * kRows;
  const int positions =
      static_cast<int>(max(int64_t{0}, min(int64_t{slice}, chunk_columns(p, chunk) - first)));
  if (p.tables.words == 2) {
    fill_table<kRows, 2>(p, table, batch, chunk, first_row, first, positions);
  } else {
    fill_table<kRows, 4>(p, table, batch, chunk, first_row, first, positions);
  }
  const int levels = p.tables.levels, part = threadIdx.x % 4;
  const bool whole = aligned && positions % kCodes == 0;
  const int64_t begin = blockIdx.x * columns_per_block, end = min(p.m, begin + columns_per_block);
  const auto read = [&](int64_t column, Codes& codes) {
    codes.read(b_codes_at(p, batch, chunk, min(column, end - 1)) + first, positions, whole);
  };
  Codes ahead;
  read(begin + threadIdx.x / 4, ahead);
  __syncthreads();
  for (int64_t pass = begin; pass < end; pass += kColumnsPerPass) {
    const int64_t column = pass + threadIdx.x / 4;
    const Codes codes = ahead;
    if (pass + kColumnsPerPass < end) read(column + kColumnsPerPass, ahead);
    int sum[kRows] = {};
    bool bad = false;
#pragma unroll
    for (int m = 0; m < Codes::kReads; ++m) {
      const int i = (part + 4 * m) * kCodes;
      if (i >= positions) break;
      const Entry<kRows>* entries = table + i * (levels + 1);
#pragma unroll
      for (int j = 0; j < kCodes; ++j) {
        const int code = checked_code(p, codes.code[m][j], bad);
        // Past the end code 0, whose count is 0 at every position: that of position i.
        const Entry<kRows> entry = entries[i + j < positions ? j * (levels + 1) + abs(code) : 0];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          sum[r] += code < 0 ? -entry.count[r] : int{entry.count[r]};
        }
      }
    }
    if (bad && column < end) mark_damaged(p, batch, column);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
      sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
      if (column < end && part == r % 4 && first_row + r < p.n) {
        p.partial[((blockIdx.y * p.batches + batch) * p.n + first_row + r) * p.m + column] = sum[r];
      }
    }
  }
}

template <int kRows>
void launch(const GemmProblem& p, const FewRowsCut& cut, const DeviceLimits& device,
            cudaStream_t stream) {
  // One limit for all problems: threads may launch the same kernel at the same time.
  allow_shared_memory<few_rows<kRows>>(kTableBytes);
  const FewRowsGrid g(p, cut, kColumnsPerPass, device);
  launch_dependent<few_rows<kRows>>(g.grid, dim3(kThreads), cut.shared_bytes, stream, p, cut.slice,
                                    cut.per_chunk, cut.row_groups, g.columns_per_block, g.aligned);
}

}  // namespace

std::string few_rows_refuses(const GemmProblem& p, const DeviceLimits& device) {
  if (few_rows_bytes_refuses(p, device).empty()) return "";
  if (p.n > kMostFewRows) return "a has more than 16 rows";
  if (p.tables.b_bits == nullptr) return "the bit tables of this config do not fit in memory";
  return cut_of(p).refuses(p, device);
}

int64_t few_rows_parts(const GemmProblem& p, const DeviceLimits& device) {
  return few_rows_bytes_refuses(p, device).empty() ? few_rows_bytes_parts(p) : cut_of(p).per_chunk;
}

void few_rows_gemm(const GemmProblem& p, const DeviceLimits& device, cudaStream_t stream) {
  if (few_rows_bytes_refuses(p, device).empty()) return few_rows_bytes_gemm(p, device, stream);
  const FewRowsCut cut = cut_of(p);
  switch (cut.rows) {
    case 1:
      return launch<1>(p, cut, device, stream);
    case 2:
      return launch<2>(p, cut, device, stream);
    case 4:
      return launch<4>(p, cut, device, stream);
    default:
      return launch<8>(p, cut, device, stream);
  }
}

}  // namespace scmp::cuda
