#include "gemm/cuda/stage_classes.h"

#include <algorithm>

#include "common/copy_table.cuh"
#include "common/dependent_launch.cuh"
#include "common/error.h"
#include "common/shared_memory.cuh"
#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/tile/expand.cuh"
#include "quant/affine.h"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerMultiprocessor = 1;      // beside the kernel that expands bits
constexpr int kMostPerMultiprocessor = 3;  // what the registers allow
constexpr int kBlockRows = 8;              // of b, which a warp takes together
constexpr int kEach = 8;                   // neighbouring positions of a thread
constexpr int kMostTable = 36 << 10;
constexpr int64_t kMostAhead = 1 << 16;  // columns that the counting goes beyond the last

// The signed ones of two codes in every class's cycles.
template <bool kWide>
struct SignedOnes;

template <>
struct SignedOnes<false> {
  uint32_t marks[2], bytes[2];  // 32, 64, 96, 128 cycles; the same negative where the code is
  uint32_t signs;               // of the codes, in the halves

  __device__ __forceinline__ void load(const uint8_t* table, const uint32_t (&entry)[2],
                                       const int (&sign)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      marks[i] = reinterpret_cast<const uint32_t*>(table)[entry[i]];
      const auto s = static_cast<uint32_t>(sign[i]);
      const uint32_t x = marks[i] ^ s;  // the upper bits apart, so that nothing is carried over
      bytes[i] = ((x & 0x7f7f7f7fu) + (s & 0x01010101u)) ^ (x & 0x80808080u);
    }
    signs = (static_cast<uint32_t>(sign[0]) & 0xffffu) | static_cast<uint32_t>(sign[1]) << 16;
  }
  /// Of both codes, as int16, in the class's cycles.
  template <int kClass>
  __device__ __forceinline__ uint32_t of() const {
    if constexpr (kClass < 3) {  // at most 96: bytes, and their signs
      uint32_t out;
      asm("prmt.b32 %0, %1, %2, %3;"
          : "=r"(out)
          : "r"(bytes[0]), "r"(bytes[1]),
            "n"(kClass | (8 | kClass) << 4 | (4 + kClass) << 8 | (12 + kClass) << 12));
      return out;
    }
    const uint32_t x = (__byte_perm(marks[0], marks[1], 0x7733) & 0x00ff00ffu) ^ signs;
    return ((x & 0x7fff7fffu) + (signs & 0x00010001u)) ^ (x & 0x80008000u);
  }
};

template <>
struct SignedOnes<true> {
  uint4 marks[2];
  int sign[2];

  __device__ __forceinline__ void load(const uint8_t* table, const uint32_t (&entry)[2],
                                       const int (&given)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      marks[i] = reinterpret_cast<const uint4*>(table)[entry[i]];
      sign[i] = given[i];
    }
  }
  template <int kClass>
  __device__ __forceinline__ uint32_t of() const {
    constexpr int kMark = class_words(kClass) - 1;
    uint32_t both[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t pairs[4] = {marks[i].x, marks[i].y, marks[i].z, marks[i].w};
      const uint32_t ones = kMark % 2 == 0 ? pairs[kMark / 2] & 0xffffu : pairs[kMark / 2] >> 16;
      both[i] = (ones ^ static_cast<uint32_t>(sign[i])) - static_cast<uint32_t>(sign[i]);
    }
    return (both[0] & 0xffffu) | both[1] << 16;
  }
};

// A thread's part of a unit of 32 positions: kEach codes of a row.
template <bool kAligned>
struct Part {
  ColumnCodes<kEach> codes;
  int chunk, first;  // position in the chunk
  int exist;         // how many of the codes do: the others are 0

  /// Unit i of all the chunks of the row whose codes are given.
  __device__ __forceinline__ Part(const StageClassesArgs& args, const int16_t* row, bool row_exists,
                                  int i, int position) {
    const auto units = static_cast<int>(args.places.units), count = static_cast<int>(args.chunk);
    chunk = args.chunks == 1 ? 0 : i / units;
    first = (i - chunk * units) * kUnitPositions + position;
    const int in_row = chunk * count + first;
    exist = min(count - first, static_cast<int>(args.columns) - in_row);
    if (!row_exists || chunk >= args.chunks) exist = 0;
    const int16_t* from = row + in_row;
    if constexpr (kAligned) {
      uint4 raw = make_uint4(0, 0, 0, 0);
      if (exist > 0) raw = __ldcs(reinterpret_cast<const uint4*>(from));
      codes.two[0] = raw.x;
      codes.two[1] = raw.y;
      codes.two[2] = raw.z;
      codes.two[3] = raw.w;
    } else {
      codes.read_each(from, exist, [](int j) { return j; });
    }
  }
};

// What a block knows of its kBlockRows rows.
struct BlockRows {
  int64_t batch, first, row;          // first of the block, of the thread
  int64_t places_first, places_rows;  // of the block of SortedPlaces
  uint32_t needs;

  __device__ BlockRows(const StageClassesArgs& args, uint32_t block, uint32_t row_blocks,
                       int within) {
    batch = block / row_blocks;
    first = int64_t{block % row_blocks} * kBlockRows;
    row = first + within;
    places_first = row / kWgmmaRows * kWgmmaRows;
    places_rows = args.places.block_rows(places_first);
    needs = args.needs[batch];
  }
};

// Calls visit with every class that tables of this width have, as a constant.
template <bool kWide, int kClass = 0, typename Visit>
__device__ __forceinline__ void each_class(const Visit& visit) {
  if constexpr (kClass < (kWide ? kLengthClasses : kNarrowMarks)) {
    visit(std::integral_constant<int, kClass>{});
    each_class<kWide, kClass + 1>(visit);
  }
}

// Writes the part's copies; false where a code is off the grid.
template <bool kWide, bool kAligned>
__device__ __forceinline__ bool write_part(const StageClassesArgs& args, const BlockRows& rows,
                                           const Part<kAligned>& part, int position,
                                           const uint8_t* table) {
  const auto codes = static_cast<uint32_t>(args.levels + 1);
  const auto lanes = static_cast<int>(args.lanes);
  uint32_t entry[kEach];  // of code 0
  if (!args.lane_of && lanes % kEach == 0 && (lanes & (lanes - 1)) == 0) {
    const auto lane = static_cast<uint32_t>(part.first & (lanes - 1));  // the others follow
#pragma unroll
    for (int j = 0; j < kEach; ++j) entry[j] = (lane + j) * codes;
  } else {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t at = j < part.exist ? part.first + j : 0;
      entry[j] = static_cast<uint32_t>(lane_of_position(args.lane_of, args.lanes, at)) * codes;
    }
  }
  CheckedCodes checked(args.levels, false);
  SignedOnes<kWide> ones[kEach / 2];
#pragma unroll
  for (int j = 0; j < kEach; j += 2) {
    const SignedCode code[2] = {checked.at(part.codes.two, j), checked.at(part.codes.two, j + 1)};
    ones[j / 2].load(table, {entry[j] + code[0].magnitude, entry[j + 1] + code[1].magnitude},
                     {code[0].sign, code[1].sign});
  }
  const auto in_block = static_cast<int>(rows.row - rows.places_first);
  int16_t* to = args.staged + args.places.at(rows.batch, part.chunk, rows.places_first,
                                             part.first / kUnitPositions);
  each_class<kWide>([&](auto which) {
    constexpr int kClass = decltype(which)::value, kPositions = class_positions(kClass);
    if ((rows.needs >> kClass & 1) == 0) return;
    int16_t* place = to + kClass * args.class_stride +
                     SortedPlaces::in_unit(rows.places_rows, in_block, position, kPositions);
    __stwb(reinterpret_cast<uint4*>(place),
           make_uint4(ones[0].template of<kClass>(), ones[1].template of<kClass>(),
                      ones[2].template of<kClass>(), ones[3].template of<kClass>()));
  });
  return checked.good();
}

// Blocks take kBlockRows rows after the other, their warps one unit after the other, of which the
// next ones' codes come meanwhile. kNear: the table comes along into shared memory.
template <bool kWide, bool kAligned, bool kNear>
__global__ void __launch_bounds__(kThreads, kMostPerMultiprocessor)
    stage_classes_kernel(const __grid_constant__ StageClassesArgs args, uint32_t row_blocks,
                         int table_bytes) {
  extern __shared__ __align__(16) uint8_t shared[];
  let_next_kernel_start();
  __shared__ uint32_t damaged;  // bits of the block's rows
  const uint8_t* far = args.tables.b_counts.entries;
  if (kNear) copy_table(far, table_bytes, shared);
  const uint8_t* table = kNear ? shared : far;
  constexpr int kWarps = kThreads / 32;
  const int within = threadIdx.x % 32 / 4, position = threadIdx.x % 4 * kEach;
  const auto units = static_cast<int>(args.chunks * args.places.units);
  const auto all = static_cast<uint32_t>(args.batches) * row_blocks;
  for (uint32_t block = blockIdx.x; block < all; block += gridDim.x) {
    if (threadIdx.x == 0) damaged = 0;
    __syncthreads();
    const BlockRows rows(args, block, row_blocks, within);
    const bool exists = rows.row < args.rows;
    const int16_t* codes =
        args.codes + (rows.batch * args.rows + (exists ? rows.row : 0)) * args.columns;
    const auto read = [&](int i) { return Part<kAligned>(args, codes, exists, i, position); };
    int i = threadIdx.x / 32;
    Part<kAligned> now = read(i), next = read(i + kWarps);
    bool good = true;
    for (; i < units; i += kWarps) {
      const Part<kAligned> later = read(i + 2 * kWarps);
      if (exists) good = write_part<kWide>(args, rows, now, position, table) && good;
      now = next;
      next = later;
    }
    if (!good) atomicOr(&damaged, 1u << within);
    __syncthreads();
    for (int64_t j = threadIdx.x; j < kBlockRows * args.chunks; j += kThreads) {
      const int64_t chunk = j / kBlockRows, which = j % kBlockRows, own = rows.first + which;
      if (own >= args.rows) continue;
      args.row_scales[(rows.batch * args.rows + own) * args.chunks + chunk] =
          damaged >> which & 1 ? quiet_nan()
                               : args.scales[(rows.batch * args.chunks + chunk) * args.rows + own];
    }
    __syncthreads();
  }
}

template <bool kWide, bool kAligned, bool kNear>
void launch(const StageClassesArgs& args, unsigned blocks, int64_t row_blocks, int64_t table_bytes,
            cudaStream_t stream) {
  constexpr auto kKernel = stage_classes_kernel<kWide, kAligned, kNear>;
  leave_shared_memory<kKernel>();
  const auto shared = static_cast<int>(kNear ? table_bytes : 0);
  kKernel<<<blocks, kThreads, shared, stream>>>(args, static_cast<uint32_t>(row_blocks), shared);
}

template <bool kWide, bool kAligned>
void launch(const StageClassesArgs& args, int multiprocessors, cudaStream_t stream) {
  const int64_t row_blocks = (args.rows + kBlockRows - 1) / kBlockRows;
  require(args.batches * row_blocks < (int64_t{1} << 31) &&
              args.columns + kMostAhead < (int64_t{1} << 31),
          "rows and columns must be fewer than 2**31 on CUDA");
  const int64_t bytes = args.lanes * (args.levels + 1) * args.tables.b_counts.entry_bytes();
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(args.batches * row_blocks, multiprocessors * kPerMultiprocessor));
  if (bytes <= kMostTable) {
    launch<kWide, kAligned, true>(args, blocks, row_blocks, bytes, stream);
  } else {
    launch<kWide, kAligned, false>(args, blocks, row_blocks, bytes, stream);
  }
}

}  // namespace

void stage_classes(const StageClassesArgs& args, int multiprocessors, cudaStream_t stream) {
  const bool aligned = args.columns % kEach == 0 && args.chunk % kEach == 0 &&
                       reinterpret_cast<uintptr_t>(args.codes) % 16 == 0;
  if (args.tables.b_counts.wide) {
    aligned ? launch<true, true>(args, multiprocessors, stream)
            : launch<true, false>(args, multiprocessors, stream);
  } else {
    aligned ? launch<false, true>(args, multiprocessors, stream)
            : launch<false, false>(args, multiprocessors, stream);
  }
}

}  // namespace scmp::cuda
