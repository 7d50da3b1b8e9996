#include "gemm/cuda/row_lengths.h"

#include <algorithm>

#include "common/error.h"
#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/mma/patterns.cuh"
#include "gemm/dequantize.h"
#include "quant/affine.h"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = 256;  // that a block stages: they look up the same patterns
constexpr int kSortThreads = 1024;
constexpr int kMostLength = 4096;

__device__ bool good(const RowLengthArgs& args, int length) {
  return length >= 0 && length <= args.longest;
}

__device__ int length_of(const RowLengthArgs& args, int64_t row, int64_t chunk) {
  return args.lengths[args.length_per_chunk ? row * args.chunks + chunk : row];
}

// Cycles of the first `length` at which a lane's sequence is below `code`.
__device__ int enabled_cycles(const CycleTables& t, int64_t lane, int length, int code) {
  int count = 0;
  if (!t.bits) {
    const uint16_t* values = t.values + lane * t.length;
    for (int i = 0; i < length; ++i) count += values[i] < code;
    return count;
  }
  const uint32_t* bits = t.bits + (lane * (t.levels + 1) + code) * t.words;
  for (int word = 0; 32 * word < length; ++word) {
    count += __popc(bits[word] & thermometer(length, word));
  }
  return count;
}

// The same for four codes at positions to .. to + 3, signs kept; patterns of kWords words.
template <int kWords>
__device__ __forceinline__ uint2 enabled_cycles(const CycleTables& t, int64_t to, int length,
                                                const uint2& codes) {
  uint32_t used[kWords];
#pragma unroll
  for (int w = 0; w < kWords; ++w) used[w] = thermometer(length, w);
  const int code[4] = {static_cast<int16_t>(codes.x), static_cast<int>(codes.x) >> 16,
                       static_cast<int16_t>(codes.y), static_cast<int>(codes.y) >> 16};
  int cycles[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const auto lane = static_cast<uint32_t>(lane_of_position(t.lane_of, t.lanes, to + j));
    const auto* bits = reinterpret_cast<const uint2*>(t.bits) +
                       int64_t{lane * (t.levels + 1u) + abs(code[j])} * (kWords / 2);
    int count = 0;
#pragma unroll
    for (int i = 0; i < kWords / 2; ++i) {
      const uint2 two = __ldg(bits + i);
      count += __popc(two.x & used[2 * i]) + __popc(two.y & used[2 * i + 1]);
    }
    cycles[j] = code[j] < 0 ? -count : count;
  }
  return make_uint2((cycles[0] & 0xffff) | cycles[1] << 16, (cycles[2] & 0xffff) | cycles[3] << 16);
}

// A block takes kTileRows rows of one stage; a thread one position, or four where kWords is not 0.
template <int kWords>
__global__ void __launch_bounds__(kThreads)
    stage_rows(const __grid_constant__ RowLengthArgs args, uint32_t tiles) {
  constexpr int kStep = kWords == 0 ? 1 : 4;
  const StageLayout& l = args.layout;
  const uint32_t tile = blockIdx.x % tiles;
  const int64_t batch = blockIdx.x / tiles / l.stages, stage = blockIdx.x / tiles % l.stages;
  const int64_t chunk = stage / l.stages_per_chunk;
  const int64_t first = stage % l.stages_per_chunk * l.positions;  // within the chunk
  const int64_t columns = min(args.chunk, args.columns - chunk * args.chunk);
  const int shift = __ffs(l.positions) - 1;
  const int16_t* codes = args.codes + batch * args.rows * args.columns + chunk * args.chunk;
  int16_t* out = args.cycles + ((batch * l.stages + stage) * l.rows_padded << shift);
  for (int i = threadIdx.x * kStep; i < kTileRows << shift; i += kThreads * kStep) {
    const int64_t to_row = int64_t{tile} * kTileRows + (i >> shift);
    if (to_row >= args.rows) return;
    const int position = i & (l.positions - 1);
    const int64_t to = first + position, from = args.full ? to / 2 : to;
    const int64_t row = args.row_order ? args.row_order[batch * args.rows + to_row] : to_row;
    const int64_t a_row = batch * args.rows + row;
    const int length = length_of(args, a_row, chunk);
    const bool usable = good(args, length);
    if (to == 0) {
      float c = 0.0f;
      if (!usable) {
        c = quiet_nan();
      } else if (length > 0) {
        c = length_factor(args.qmax_squared, length);
      }
      args.row_c[a_row * args.chunks + chunk] = c;
    }
    int16_t* target = out + (to_row << shift) + position;
    const int16_t* source = codes + row * args.columns + from;
    if constexpr (kWords > 0) {
      uint2 four = make_uint2(0, 0);
      if (usable && from < columns) {
        four = enabled_cycles<kWords>(args.tables, to, length,
                                      *reinterpret_cast<const uint2*>(source));
      }
      *reinterpret_cast<uint2*>(target) = four;
    } else {
      int cycles = 0;
      if (usable && (!args.full || (length == args.full) == (to % 2 == 1)) && from < columns) {
        const int code = *source;
        const int64_t lane = lane_of_position(args.tables.lane_of, args.tables.lanes, to);
        cycles = enabled_cycles(args.tables, lane, length, abs(code));
        if (code < 0) cycles = -cycles;
      }
      *target = static_cast<int16_t>(cycles);
    }
  }
}

// What a row is sorted by: its longest stream, as the others do not go beyond.
__device__ int sort_key(const RowLengthArgs& args, int64_t row) {
  int most = 0;
  for (int64_t chunk = 0; chunk < (args.length_per_chunk ? args.chunks : 1); ++chunk) {
    const int length = length_of(args, row, chunk);
    if (good(args, length)) most = max(most, length);
  }
  return most;
}

// Sorts the rows of a batch entry by counting, in no order among equals: one block each.
__global__ void __launch_bounds__(kSortThreads)
    sort_rows_kernel(const __grid_constant__ RowLengthArgs args) {
  __shared__ int start[kMostLength + 1];  // rows of a key, then where the next one goes
  __shared__ int sums[kSortThreads];
  constexpr int kKeys = kMostLength / kSortThreads + 1;  // of a thread, the longest first
  const int64_t batch = blockIdx.x, first = batch * args.rows;
  for (int i = threadIdx.x; i <= kMostLength; i += kSortThreads) start[i] = 0;
  __syncthreads();
  for (int64_t row = threadIdx.x; row < args.rows; row += kSortThreads) {
    atomicAdd(&start[sort_key(args, first + row)], 1);
  }
  __syncthreads();
  int own = 0;
  for (int i = 0; i < kKeys; ++i) {
    const int key = kMostLength - static_cast<int>(threadIdx.x) * kKeys - i;
    if (key >= 0) own += start[key];
  }
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int step = 1; step < kSortThreads; step *= 2) {
    const int before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  int next = sums[threadIdx.x] - own;
  for (int i = 0; i < kKeys; ++i) {
    const int key = kMostLength - static_cast<int>(threadIdx.x) * kKeys - i;
    if (key < 0) continue;
    const int rows = start[key];
    start[key] = next;
    next += rows;
  }
  __syncthreads();
  for (int64_t row = threadIdx.x; row < args.rows; row += kSortThreads) {
    const int to = atomicAdd(&start[sort_key(args, first + row)], 1);
    args.row_order[first + to] = static_cast<int32_t>(row);
  }
  const int64_t blocks = (args.rows + kWgmmaRows - 1) / kWgmmaRows;
  int32_t* words = args.row_words + batch * blocks * args.chunks;
  for (int64_t i = threadIdx.x; i < blocks * args.chunks; i += kSortThreads) words[i] = 1;
  if (threadIdx.x == 0) args.row_needs[batch] = 0;
  __syncthreads();
  for (int64_t i = threadIdx.x; i < args.rows * args.chunks; i += kSortThreads) {
    const int64_t place = i / args.chunks, chunk = i - place * args.chunks;
    const int length = length_of(args, first + args.row_order[first + place], chunk);
    const int need = good(args, length) ? (length + 31) / 32 : 0;
    int32_t* to = words + place / kWgmmaRows * args.chunks + chunk;
    if (need > *to) atomicMax(to, need);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < blocks * args.chunks; i += kSortThreads) {
    atomicOr(&args.row_needs[batch], 1u << min(words[i] - 1, 31));
  }
}

}  // namespace

void sort_rows(const RowLengthArgs& args, cudaStream_t stream) {
  require(args.longest <= kMostLength && args.rows < (int64_t{1} << 31),
          "rows must be fewer than 2**31 on CUDA, got ", args.rows);
  sort_rows_kernel<<<static_cast<unsigned>(args.batches), kSortThreads, 0, stream>>>(args);
}

void stage_row_lengths(const RowLengthArgs& args, cudaStream_t stream) {
  const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows;
  const int64_t blocks = args.batches * args.layout.stages * tiles;
  require(blocks < (int64_t{1} << 31), "rows times columns must be fewer on CUDA: ", blocks,
          " blocks of them");
  auto kernel = stage_rows<0>;
  const CycleTables& t = args.tables;
  const bool fours = t.bits && !args.full && args.columns % 4 == 0 && args.chunk % 4 == 0 &&
                     args.layout.positions >= 4 && t.lanes * (t.levels + 1) < (int64_t{1} << 31);
  if (fours && t.words == 2) kernel = stage_rows<2>;
  if (fours && t.words == 4) kernel = stage_rows<4>;
  if (fours && t.words == 8) kernel = stage_rows<8>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args,
                                                                 static_cast<uint32_t>(tiles));
}

}  // namespace scmp::cuda
