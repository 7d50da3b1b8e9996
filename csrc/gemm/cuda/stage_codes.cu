#include "gemm/cuda/stage_codes.h"

#include <algorithm>

#include "common/error.h"
#include "gemm/cuda/lanes.cuh"
#include "quant/affine.h"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 256;

// The cycles of a code at a position of a chunk, or 0 and `bad` raised.
__device__ __forceinline__ int cycles_of(const StageCodesArgs& args, int64_t position, int code,
                                         bool& bad) {
  const int magnitude = abs(code);
  if (magnitude > args.levels) {
    bad = true;
    return 0;
  }
  if (!args.cycles) return code;
  const int64_t lane = lane_of_position(args.lane_of, args.lanes, position);
  const int cycles = args.cycles[lane * (args.levels + 1) + magnitude];
  return code < 0 ? -cycles : cycles;
}

// A block takes a row, a thread kEach neighbouring positions at a time.
template <int kEach>
__global__ void __launch_bounds__(kThreads)
    stage_codes_kernel(const __grid_constant__ StageCodesArgs args) {
  const StageLayout& l = args.layout;
  const int64_t batch = blockIdx.x / args.rows, row = blockIdx.x - batch * args.rows;
  const int16_t* codes = args.codes + blockIdx.x * args.columns;
  const int shift = __ffs(l.positions) - 1;
  const auto chunk_length = static_cast<uint32_t>(args.chunk);
  bool bad = false;
  for (uint32_t i = threadIdx.x * kEach; i < args.columns; i += kThreads * kEach) {
    const uint32_t chunk = args.chunks == 1 ? 0 : i / chunk_length;
    const uint32_t position = i - chunk * chunk_length;
    const int64_t stage = batch * l.stages + chunk * l.stages_per_chunk + (position >> shift);
    alignas(16) int16_t each[kEach];
    if constexpr (kEach == 8) {
      *reinterpret_cast<uint4*>(each) = __ldg(reinterpret_cast<const uint4*>(codes + i));
    } else {
      each[0] = codes[i];
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      each[j] = static_cast<int16_t>(cycles_of(args, position + j, each[j], bad));
    }
    int16_t* to = args.staged + ((stage * l.rows_padded + row) << shift) +
                  staged_position(static_cast<int>(row),
                                  static_cast<int>(position) & (l.positions - 1), l.positions);
    if constexpr (kEach == 8) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(each);
    } else {
      to[0] = each[0];
    }
  }
  const bool damaged = __syncthreads_or(bad);
  for (int64_t chunk = threadIdx.x; chunk < args.chunks; chunk += kThreads) {
    args.row_scales[blockIdx.x * args.chunks + chunk] =
        damaged ? quiet_nan() : args.scales[(batch * args.chunks + chunk) * args.rows + row];
  }
}

}  // namespace

void stage_codes(const StageCodesArgs& args, cudaStream_t stream) {
  const int64_t blocks = args.batches * args.rows;
  require(blocks < (int64_t{1} << 31) && args.columns < (int64_t{1} << 31) - kThreads * 8,
          "rows and columns must be fewer than 2**31 on CUDA");
  const bool eights = args.columns % 8 == 0 && args.chunk % 8 == 0 &&
                      args.layout.positions % 8 == 0 &&
                      reinterpret_cast<uintptr_t>(args.codes) % 16 == 0;
  const auto kernel = eights ? stage_codes_kernel<8> : stage_codes_kernel<1>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(args);
}

}  // namespace scmp::cuda
