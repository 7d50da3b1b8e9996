// How blocks, warps and threads share the operands' segments.
#pragma once

#include "common/dependent_launch.cuh"
#include "quant/cuda/segment.cuh"

namespace scmp::cuda {

constexpr int kThreads = 256;
constexpr int kQuads = 4;  // groups of four values that a thread keeps between its two passes
constexpr int64_t kMostSegments = (int64_t{1} << 32) - 64;  // counted in 32 bits
constexpr int64_t kWarpSegment = 32 * kQuads * 4;  // up to this many columns a warp takes a segment
constexpr int64_t kShortSegment = 32 * 4;          // up to this many it takes kQuads of them

struct Operands {
  QuantizeArgs args[2];
  int64_t blocks[2];  // thread blocks of each operand
  bool aligned[2];    // four values can be read as one
};

// Which of the two operands this block works for, and which of its blocks it is.
template <typename AnyOperands>
__device__ inline int operand_of_block(const AnyOperands& operands, int64_t& block) {
  block = blockIdx.x;
  const int which = block >= operands.blocks[0];
  if (which) block -= operands.blocks[0];
  return which;
}

__device__ inline void clear(const QuantizeArgs& q, int64_t block, int64_t blocks) {
  for (int64_t i = block * blockDim.x + threadIdx.x; i < q.cleared_bytes;
       i += blocks * blockDim.x) {
    q.cleared[i] = 0;
  }
}

// How the threads share the segments; the same for both operands, whose chunks are as long.
enum class Sharing { block, warp, short_segments };

inline Sharing sharing_of(const QuantizeArgs& q) {
  return q.chunk > kWarpSegment    ? Sharing::block
         : q.chunk > kShortSegment ? Sharing::warp
                                   : Sharing::short_segments;
}

}  // namespace scmp::cuda
