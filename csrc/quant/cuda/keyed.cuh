// The usual cases whose groups span segments, without the choices of the general kernels: ranges of
// groups that lie together in memory, and levels from ranges that are known.
#pragma once

#include "quant/cuda/fast.cuh"

namespace scmp::cuda {

constexpr int kRangeBatches = 2;  // of kQuads groups of four that a thread reads
constexpr int64_t kRangeBlock = int64_t{kThreads} * kQuads * 4 * kRangeBatches;

// Operands of whole groups: blocks of each, and of each group.
struct FlatOperands {
  QuantizeArgs args[2];
  int64_t blocks[2], blocks_per_group[2], group_size[2];
};

__global__ void __launch_bounds__(kThreads)
    flat_ranges_kernel(const __grid_constant__ FlatOperands operands) {
  int64_t block;
  const int which = operand_of_block(operands, block);
  const QuantizeArgs& q = operands.args[which];
  const int64_t group = block / operands.blocks_per_group[which];
  const int64_t first = (block - group * operands.blocks_per_group[which]) * kRangeBlock;
  const int64_t from = group * operands.group_size[which] + first;
  const int count = static_cast<int>(min(kRangeBlock, operands.group_size[which] - first));
  Range range;
#pragma unroll
  for (int b = 0; b < kRangeBatches; ++b) {
    float4 x[kQuads];
    const int lane = threadIdx.x + b * kQuads * kThreads;
    read_batch<kThreads>(q.source.dtype, q.source.data, from, count, lane, x);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      if (4 * (lane + j * kThreads) < count) range.add(x[j], 4, q.scheme.unipolar);
    }
  }
  range = reduce<kThreads>(range, q.scheme.unipolar);
  if (threadIdx.x == 0) add_to_keys(q.range_keys + group * 3, range, q.scheme.unipolar);
}

// Four codes of a segment whose range is known; the sum of its levels, where they are unipolar.
template <bool kUnipolar>
struct KeyedCodes {
  std::conditional_t<kUnipolar, Leveler, FastCodes> convert;
  const QuantizeArgs& q;
  long long sum = 0;

  __device__ KeyedCodes(const QuantizeArgs& args, const Affine& map)
      : convert(args, map), q(args) {}

  __device__ __forceinline__ int4 operator()(const float4& x) {
    if constexpr (kUnipolar) {
      const float values[4] = {x.x, x.y, x.z, x.w};
      int level[4], code[4];
      convert(values, level);
      sum += level[0] + level[1] + level[2] + level[3];
      boundaries_of(q, level, code);
      return make_int4(code[0], code[1], code[2], code[3]);
    } else {
      return convert(x);
    }
  }
};

// A warp takes a segment, or with kShort kQuads of them of at most 128 columns.
template <bool kUnipolar, bool kShort, bool kCycles>
__global__ void __launch_bounds__(kThreads, 4)
    keyed_quantize_kernel(const __grid_constant__ Operands operands) {
  let_next_kernel_start();
  int64_t block;
  const int which = operand_of_block(operands, block);
  const QuantizeArgs& q = operands.args[which];
  clear(q, block, operands.blocks[which]);
  const int64_t count = q.source.total_rows() * q.chunks;
  const int64_t index = (block * (kThreads / 32) + threadIdx.x / 32) * (kShort ? kQuads : 1);
  if (index >= count) return;
  const int lane = threadIdx.x % 32;
  const auto finish = [&](const Segment& s, const Affine& affine, long long sum) {
    if (kUnipolar && q.sums) {
      sum = reduce_sum<32>(sum);
      if (lane == 0) q.sums[s.row] = __ll2float_rn(sum);
    }
    if (lane == 0) write_row_outputs(q, s, affine);
  };
  const auto affine_of = [&](const Segment& s) {
    const uint32_t* keys = s.keys(q);
    return Range{keys[0], keys[1], keys[2]}.affine(q.scheme);
  };
  Segment s(q, static_cast<uint32_t>(index));
  float4 x[kQuads];
  if constexpr (kShort) {
    const int segments = static_cast<int>(min(int64_t{kQuads}, count - index));
    read_short(q, s, segments, x);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      if (j < segments) {
        const Affine affine = affine_of(s);
        KeyedCodes<kUnipolar> codes(q, affine);
        if (4 * lane < s.count) FastTarget<kCycles>(q, s).write(4 * lane, codes(x[j]));
        finish(s, affine, codes.sum);
      }
      s.advance(q);
    }
  } else {
    const Affine affine = affine_of(s);
    KeyedCodes<kUnipolar> codes(q, affine);
    const FastTarget<kCycles> target(q, s);
    const int columns = static_cast<int>(s.count);
#pragma unroll 1
    for (int first = lane; 4 * first < columns; first += kQuads * 32) {
      read_batch<32>(q.source.dtype, q.source.data, s.offset + s.first, columns, first, x);
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const int i = 4 * (first + j * 32);
        if (i < columns) target.write(i, codes(x[j]));
      }
    }
    finish(s, affine, codes.sum);
  }
}

}  // namespace scmp::cuda
