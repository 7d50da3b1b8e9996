#include "gemm/cuda/row_lengths.h"

#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/error.h"
#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/mma/patterns.cuh"
#include "gemm/dequantize.h"
#include "quant/affine.h"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = kWgmmaRows;  // that a block stages: they look up the same patterns
constexpr int kSortThreads = 1024;
constexpr int kMostLength = 4096;
constexpr int kNearWords = 2048;  // counted in shared memory

__device__ bool good(const RowLengthArgs& args, int length) {
  return length >= 0 && length <= args.longest;
}

// An own c, 0 where nothing is added.
__device__ float c_of(const RowLengthArgs& args, int length) {
  if (!good(args, length)) return quiet_nan();
  return length == 0 ? 0.0f : length_factor(args.qmax_squared, length);
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

// Positions that a block stages of its rows: a stage, or where rows are sorted a unit of them.
__host__ __device__ int unit_positions(const RowLengthArgs& args) {
  return args.row_order ? kUnitPositions : args.layout.positions;
}
__host__ __device__ int64_t units_of_chunk(const RowLengthArgs& args) {
  const int64_t positions = args.full ? 2 * args.chunk : args.chunk;
  return args.row_order ? (positions + kUnitPositions - 1) / kUnitPositions
                        : args.layout.stages_per_chunk;
}

// Where the rows of a block lie.
struct Target {
  int16_t* first;
  int positions;  // of a stage
  int64_t rows;   // that a stage of sorted rows has

  __device__ Target(const RowLengthArgs& args, int64_t batch, int64_t chunk, int64_t unit,
                    uint32_t tile) {
    const StageLayout& l = args.layout;
    const int64_t first_row = int64_t{tile} * kTileRows;
    if (args.row_order) {
      const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows;
      const int words = args.row_words[(batch * tiles + tile) * args.chunks + chunk];
      const SortedPlaces places{l.rows_padded, args.chunks, units_of_chunk(args)};
      positions = class_positions(class_of_words(words));
      first = args.cycles + places.at(batch, chunk, first_row, unit);
      rows = places.block_rows(first_row);
    } else {
      positions = l.positions;
      const int64_t stage = batch * l.stages + chunk * l.stages_per_chunk + unit;
      first = args.cycles + (stage * l.rows_padded + first_row) * positions;
      rows = 0;  // there is only one stage
    }
  }
  __device__ int16_t* at(int row, int position) const {
    return first + SortedPlaces::in_unit(rows, row, position, positions);
  }
};

// A block takes kTileRows rows of one unit; a thread one position, or four where kWords is not 0.
template <int kWords>
__global__ void __launch_bounds__(kThreads)
    stage_rows(const __grid_constant__ RowLengthArgs args, uint32_t tiles) {
  constexpr int kStep = kWords == 0 ? 1 : 4;
  const uint32_t tile = blockIdx.x % tiles;
  const int64_t units = units_of_chunk(args), rest = blockIdx.x / tiles / units;
  const int64_t batch = rest / args.chunks, chunk = rest % args.chunks;
  const int64_t unit = blockIdx.x / tiles % units, first = unit * unit_positions(args);
  const int64_t columns = min(args.chunk, args.columns - chunk * args.chunk);
  const int shift = __ffs(unit_positions(args)) - 1;
  const int16_t* codes = args.codes + batch * args.rows * args.columns + chunk * args.chunk;
  const Target target(args, batch, chunk, unit, tile);
  for (int i = threadIdx.x * kStep; i < kTileRows << shift; i += kThreads * kStep) {
    const int64_t to_row = int64_t{tile} * kTileRows + (i >> shift);
    if (to_row >= args.rows) return;
    const int position = i & ((1 << shift) - 1);
    const int64_t to = first + position, from = args.full ? to / 2 : to;
    const int64_t row = args.row_order ? args.row_order[batch * args.rows + to_row] : to_row;
    const int64_t a_row = batch * args.rows + row;
    const int length = length_of(args, a_row, chunk);
    const bool usable = good(args, length);
    if (to == 0 && !args.row_order) args.row_c[a_row * args.chunks + chunk] = c_of(args, length);
    int16_t* out = target.at(i >> shift, position);
    const int16_t* source = codes + row * args.columns + from;
    if constexpr (kWords > 0) {
      uint2 four = make_uint2(0, 0);
      if (usable && from < columns) {
        four = enabled_cycles<kWords>(args.tables, to, length,
                                      *reinterpret_cast<const uint2*>(source));
      }
      *reinterpret_cast<uint2*>(out) = four;
    } else {
      int cycles = 0;
      if (usable && (!args.full || (length == args.full) == (to % 2 == 1)) && from < columns) {
        const int code = *source;
        const int64_t lane = lane_of_position(args.tables.lane_of, args.tables.lanes, to);
        cycles = enabled_cycles(args.tables, lane, length, abs(code));
        if (code < 0) cycles = -cycles;
      }
      *out = static_cast<int16_t>(cycles);
    }
  }
}

constexpr int kLevelsAtOnce = 256;
struct Levels {
  int64_t first;
  int count;
  int32_t length[kLevelsAtOnce];
};

__device__ int64_t given_at(const NormalLengthsArgs& args, int64_t i) {
  return args.wide ? static_cast<const int64_t*>(args.given)[i]
                   : int64_t{static_cast<const int32_t*>(args.given)[i]};
}

__global__ void __launch_bounds__(kThreads)
    normal_lengths_kernel(const __grid_constant__ NormalLengthsArgs args) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.count) return;
  const int64_t length = given_at(args, i);
  args.out[i] = length >= 0 && length <= args.longest ? static_cast<int32_t>(length) : -1;
}

// The first levels also write what no level is.
__global__ void __launch_bounds__(kThreads)
    level_lengths_kernel(const __grid_constant__ NormalLengthsArgs args,
                         const __grid_constant__ Levels levels) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= args.count) return;
  const int64_t level = given_at(args, i) - levels.first;
  const bool known = level >= 0 && level < levels.count;
  if (known || levels.first == 0) args.out[i] = known ? levels.length[level] : -1;
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

// Adds one to a counter for each calling lane, once for all that have the same; what each found.
__device__ int count_up(int* counters, int which) {
  const uint32_t same = __match_any_sync(__activemask(), which);
  const int lane = threadIdx.x % 32, leader = __ffs(same) - 1;
  int before = 0;
  if (lane == leader) before = atomicAdd(&counters[which], __popc(same));
  return __shfl_sync(same, before, leader) + __popc(same & ((1u << lane) - 1));
}

// Sorts the rows of a batch entry by counting, in no order among equals: one block each. It may run
// beside the kernel that quantizes them.
__global__ void __launch_bounds__(kSortThreads)
    sort_rows_kernel(const __grid_constant__ RowLengthArgs args) {
  __shared__ int start[kMostLength + 1];  // rows of a key, then where the next one goes
  __shared__ int sums[kSortThreads];
  __shared__ int near_words[kNearWords];
  const int most = args.longest, keys = most / kSortThreads + 1;  // of a thread, the longest first
  const int64_t batch = blockIdx.x, first = batch * args.rows;
  const int64_t blocks = (args.rows + args.block_rows - 1) / args.block_rows;
  int32_t* far_words = args.row_words + batch * blocks * args.chunks;
  const bool near = blocks * args.chunks <= kNearWords;
  int32_t* words = near ? near_words : far_words;
  for (int64_t i = threadIdx.x; i < blocks * args.chunks; i += kSortThreads) words[i] = 1;
  for (int i = threadIdx.x; i <= most; i += kSortThreads) start[i] = 0;
  if (threadIdx.x == 0) args.row_needs[batch] = 0;
  __syncthreads();
  for (int64_t row = threadIdx.x; row < args.rows; row += kSortThreads) {
    count_up(start, sort_key(args, first + row));
  }
  __syncthreads();
  int own = 0;
  for (int i = 0; i < keys; ++i) {
    const int key = most - static_cast<int>(threadIdx.x) * keys - i;
    if (key >= 0) own += start[key];
  }
  sums[threadIdx.x] = own;
  __syncthreads();
  for (int step = 1; step < kSortThreads && step <= most; step *= 2) {
    const int before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
    __syncthreads();
  }
  int next = sums[threadIdx.x] - own;
  for (int i = 0; i < keys; ++i) {
    const int key = most - static_cast<int>(threadIdx.x) * keys - i;
    if (key < 0) continue;
    const int rows = start[key];
    start[key] = next;
    next += rows;
  }
  __syncthreads();
  for (int64_t row = threadIdx.x; row < args.rows; row += kSortThreads) {
    const int to = count_up(start, sort_key(args, first + row));
    args.row_order[first + to] = static_cast<int32_t>(row);
    for (int64_t chunk = 0; chunk < args.chunks; ++chunk) {
      const int length = length_of(args, first + row, chunk);
      args.row_c[(first + row) * args.chunks + chunk] = c_of(args, length);
      const int need = good(args, length) ? (length + 31) / 32 : 0;
      int32_t* at = words + to / args.block_rows * args.chunks + chunk;
      if (need > *at) atomicMax(at, need);
    }
  }
  __syncthreads();
  wait_for_previous_kernel();  // of which nothing is read: so that it is over when this one is
  for (int64_t i = threadIdx.x; i < blocks * args.chunks; i += kSortThreads) {
    if (near) far_words[i] = words[i];
    atomicOr(&args.row_needs[batch], 1u << class_of_words(min(words[i], kMostClassWords)));
  }
}

}  // namespace

void normal_lengths(const NormalLengthsArgs& args, const std::vector<int>* levels,
                    cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((args.count + kThreads - 1) / kThreads);
  if (blocks == 0) return;
  if (levels == nullptr) {
    normal_lengths_kernel<<<blocks, kThreads, 0, stream>>>(args);
    return;
  }
  for (size_t first = 0; first == 0 || first < levels->size(); first += kLevelsAtOnce) {
    Levels some{static_cast<int64_t>(first), 0, {}};
    for (; some.count < kLevelsAtOnce && first + some.count < levels->size(); ++some.count) {
      some.length[some.count] = (*levels)[first + some.count];
    }
    level_lengths_kernel<<<blocks, kThreads, 0, stream>>>(args, some);
  }
}

void sort_rows(const RowLengthArgs& args, cudaStream_t stream) {
  require(args.longest <= kMostLength && args.rows < (int64_t{1} << 31),
          "rows must be fewer than 2**31 on CUDA, got ", args.rows);
  launch_dependent<sort_rows_kernel>(dim3(static_cast<unsigned>(args.batches)), dim3(kSortThreads),
                                     0, stream, args);
}

void stage_row_lengths(const RowLengthArgs& args, cudaStream_t stream) {
  const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows;
  const int64_t blocks = args.batches * args.chunks * units_of_chunk(args) * tiles;
  require(blocks < (int64_t{1} << 31), "rows times columns must be fewer on CUDA: ", blocks,
          " blocks of them");
  auto kernel = stage_rows<0>;
  const CycleTables& t = args.tables;
  const bool fours = t.bits && !args.full && args.columns % 4 == 0 && args.chunk % 4 == 0 &&
                     unit_positions(args) >= 4 && t.lanes * (t.levels + 1) < (int64_t{1} << 31);
  if (fours && t.words == 2) kernel = stage_rows<2>;
  if (fours && t.words == 4) kernel = stage_rows<4>;
  if (fours && t.words == 8) kernel = stage_rows<8>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args,
                                                                 static_cast<uint32_t>(tiles));
}

}  // namespace scmp::cuda
