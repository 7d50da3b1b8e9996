// Short bipolar segments, four to a warp, that lie equally far apart: chunks of a row, or rows.
// Their ranges become scales in four lanes at once.
#pragma once

#include "quant/cuda/fast.cuh"

namespace scmp::cuda {

// The segments that a warp takes, from its first one on.
struct ApartSegments {
  int64_t step;       // elements of the operand from one to the next
  int64_t code_step;  // of the codes
  int64_t scale_step;

  __device__ explicit ApartSegments(const QuantizeArgs& q) {
    const StageLayout& l = q.layout;
    const bool staged = q.output == Output::staged_cycles;
    if (q.chunks == 1) {
      step = q.source.row_stride;
      code_step = staged ? l.positions : q.source.dim;
      scale_step = 1;
    } else {
      step = q.chunk;
      code_step = staged ? l.stages_per_chunk * l.rows_padded * l.positions : q.chunk;
      scale_step = q.scales_transposed ? q.source.rows : 1;
    }
  }
};

template <bool kKeyed, bool kCycles>
__global__ void __launch_bounds__(kThreads, 4)
    quantize_apart_kernel(const __grid_constant__ Operands operands) {
  let_next_kernel_start();
  static_assert(kQuads == 4);
  int64_t block;
  const int which = operand_of_block(operands, block);
  const QuantizeArgs& q = operands.args[which];
  clear(q, block, operands.blocks[which]);
  const int64_t index = (block * (kThreads / 32) + threadIdx.x / 32) * kQuads;
  if (index >= q.source.total_rows() * q.chunks) return;
  const int lane = threadIdx.x % 32, mine = lane % kQuads, i = 4 * lane;
  const Segment s(q, static_cast<uint32_t>(index));
  const ApartSegments apart(q);
  const int count = static_cast<int>(s.count);
  int64_t starts[kQuads];
  int counts[kQuads];
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    starts[j] = s.offset + s.first + j * apart.step;
    counts[j] = count;
  }
  float4 x[kQuads];
  read_each(q.source.dtype, q.source.data, starts, counts, x);
  Range range;  // of segment `mine`
  if constexpr (kKeyed) {
    Segment own = s;
    own.within += q.chunks == 1 ? mine : 0;
    own.chunk += q.chunks == 1 ? 0 : mine;
    const uint32_t* keys = own.keys(q);
    range = {keys[0], keys[1], keys[2]};
  } else {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const uint32_t most = __reduce_max_sync(~0u, most_of(x[j]));
      if (j == mine) range.magnitude = most;
    }
  }
  const Affine affine = range.affine(q.scheme);
  FastCodes codes(q, affine);
  const uint32_t dead = __ballot_sync(~0u, isnan(affine.scale));
  const float factor = codes.factor, reciprocal = codes.reciprocal;
  codes.slow = __any_sync(~0u, codes.slow);  // both ways give the same bits
  const FastTarget<kCycles> target(q, s);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    codes.factor = __shfl_sync(~0u, factor, j);
    if (codes.divide) codes.reciprocal = __shfl_sync(~0u, reciprocal, j);
    codes.multiplier = dead >> j & 1 ? 0 : q.multiplier;
    codes.bias = dead >> j & 1 ? 0 : q.bias;
    const int below = q.chunks == 1 ? j : 0;
    if (i < count) target.write_at(target.place(i, below) + j * apart.code_step, i, codes(x[j]));
  }
  if (lane < kQuads) {
    if (q.scales) scale_at(q, s)[mine * apart.scale_step] = affine.scale;
    if (q.tensor_map && s.row + mine == 0) {
      q.tensor_map[0] = affine.scale64;
      q.tensor_map[1] = affine.zero_point64;
    }
  }
}

}  // namespace scmp::cuda
