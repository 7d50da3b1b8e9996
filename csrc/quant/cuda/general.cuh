// The kernels for any operand: ranges across segments, and levels of any kind.
#pragma once

#include "quant/cuda/level.cuh"
#include "quant/cuda/range.cuh"
#include "quant/cuda/share.cuh"
#include "quant/cuda/write.cuh"

namespace scmp::cuda {

// This thread's first kQuads groups of four: of one segment (kGroup threads apart), or of kQuads
// neighbouring short ones; into cached[j * kThreads].
template <DType kDType, int kGroup, bool kShort>
__device__ inline void load_aligned(const QuantizeArgs& q, Segment s, int64_t segments,
                                    float4* cached) {
  const int lane = threadIdx.x % kGroup;
  float4 x[kQuads];
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int64_t i = 4 * (lane + int64_t{kShort ? 0 : j} * kGroup);
    x[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i + 4 <= s.count && (!kShort || j < segments)) {
      x[j] = load_quad<kDType>(q.source.data, s.offset + s.first + i);
    } else if (i < s.count && (!kShort || j < segments)) {
      x[j] = s.read(q, i);
    }
    if (kShort) s.advance(q);
  }
#pragma unroll
  for (int j = 0; j < kQuads; ++j) cached[j * kThreads] = x[j];
}

template <int kGroup, bool kShort>
__device__ inline void load_cached(const QuantizeArgs& q, Segment s, int64_t segments, bool aligned,
                                   float4* cached) {
  if (aligned) {
    switch (q.source.dtype) {
      case DType::float16:
        return load_aligned<DType::float16, kGroup, kShort>(q, s, segments, cached);
      case DType::bfloat16:
        return load_aligned<DType::bfloat16, kGroup, kShort>(q, s, segments, cached);
      case DType::float64:
        return load_aligned<DType::float64, kGroup, kShort>(q, s, segments, cached);
      default:
        return load_aligned<DType::float32, kGroup, kShort>(q, s, segments, cached);
    }
  }
#pragma unroll 1
  for (int j = 0; j < kQuads; ++j) {
    const int64_t i = 4 * (threadIdx.x % kGroup + int64_t{kShort ? 0 : j} * kGroup);
    if (!kShort || j < segments) cached[j * kThreads] = s.read(q, i);
    if (kShort) s.advance(q);
  }
}

// The range of a segment, of which this thread has its first kCached groups of four at hand.
template <int kGroup, int kCached>
__device__ inline Range range_of(const QuantizeArgs& q, const Segment& s, const float4* cached) {
  const bool unipolar = q.scheme.unipolar;
  const int lane = threadIdx.x % kGroup;
  Range range;
#pragma unroll
  for (int k = 0; k < kCached; ++k) {
    const int64_t i = 4 * (lane + int64_t{k} * kGroup);
    if (i < s.count) range.add(cached[k * kThreads], s.count - i, unipolar);
  }
#pragma unroll 1
  for (int64_t i = 4 * (lane + int64_t{kCached} * kGroup); i < s.count; i += 4 * kGroup) {
    range.add(s.read(q, i), s.count - i, unipolar);
  }
  return reduce<kGroup>(range, unipolar);
}

template <int kGroup, int kCached>
__device__ inline void quantize_segment(const QuantizeArgs& q, const Segment& s,
                                        const float4* cached) {
  const int lane = threadIdx.x % kGroup;
  Affine affine = q.argument;
  if (q.range_from == RangeFrom::segment) {
    affine = range_of<kGroup, kCached>(q, s, cached).affine(q.scheme);
  } else if (q.range_from == RangeFrom::keys) {
    const uint32_t* keys = s.keys(q);
    affine = Range{keys[0], keys[1], keys[2]}.affine(q.scheme);
  }
  const Leveler level_of(q, affine);
  long long sum = 0;
  const int64_t padded =
      q.output == Output::staged_cycles ? q.layout.stages_per_chunk * q.layout.positions : s.count;
  const auto finish = [&](const float4& four, int64_t i) {
    const float x[4] = {four.x, four.y, four.z, four.w};
    int level[4];
    level_of(x, level);
    if (i + 4 > s.count) {
#pragma unroll
      for (int j = 0; j < 4; ++j) level[j] = i + j < s.count ? level[j] : 0;
    }
    if (q.sums) sum += level[0] + level[1] + level[2] + level[3];
    write_levels(q, s, i, x, level, level_of.dead);
  };
  int64_t i = 4 * lane;
#pragma unroll 1
  for (int k = 0; k < kCached && i < padded; ++k, i += 4 * kGroup) finish(cached[k * kThreads], i);
#pragma unroll 1
  for (; i < padded; i += 4 * kGroup) finish(s.read(q, i), i);
  if (q.sums) {
    sum = reduce_sum<kGroup>(sum);
    if (lane == 0) q.sums[s.row] = __ll2float_rn(sum);
  }
  if (lane == 0) write_row_outputs(q, s, affine);
}

template <Sharing kSharing>
__global__ void __launch_bounds__(kThreads, 4)
    quantize_kernel(const __grid_constant__ Operands operands) {
  let_next_kernel_start();
  __shared__ float4 cache[kQuads * kThreads];
  constexpr bool kShort = kSharing == Sharing::short_segments;
  constexpr int kGroup = kSharing == Sharing::block ? kThreads : 32;
  int64_t block;
  const int which = operand_of_block(operands, block);
  const QuantizeArgs& q = operands.args[which];
  clear(q, block, operands.blocks[which]);
  const int64_t count = q.source.total_rows() * q.chunks;
  const int64_t first =
      (block * (kThreads / kGroup) + threadIdx.x / kGroup) * (kShort ? kQuads : 1);
  if (first >= count) return;
  float4* cached = cache + threadIdx.x;  // its own
  Segment s(q, static_cast<uint32_t>(first));
  const int64_t segments = min(int64_t{kQuads}, count - first);
  load_cached<kGroup, kShort>(q, s, segments, operands.aligned[which], cached);
  if constexpr (kShort) {
#pragma unroll 1
    for (int n = 0; n < segments; ++n) {
      quantize_segment<kGroup, 1>(q, s, cached + n * kThreads);
      s.advance(q);
    }
  } else {
    quantize_segment<kGroup, kQuads>(q, s, cached);
  }
}

template <Sharing kSharing>
__global__ void __launch_bounds__(kThreads)
    find_ranges_kernel(const __grid_constant__ Operands operands) {
  __shared__ float4 cache[kQuads * kThreads];
  constexpr bool kShort = kSharing == Sharing::short_segments;
  constexpr int kGroup = kSharing == Sharing::block ? kThreads : 32;
  int64_t block;
  const int which = operand_of_block(operands, block);
  const QuantizeArgs& q = operands.args[which];
  if (q.range_from != RangeFrom::keys) return;
  const int64_t count = q.source.total_rows() * q.chunks;
  const int64_t first =
      (block * (kThreads / kGroup) + threadIdx.x / kGroup) * (kShort ? kQuads : 1);
  if (first >= count) return;
  float4* cached = cache + threadIdx.x;
  Segment s(q, static_cast<uint32_t>(first));
  const int64_t segments = min(int64_t{kQuads}, count - first);
  load_cached<kGroup, kShort>(q, s, segments, operands.aligned[which], cached);
  const bool one = threadIdx.x % kGroup == 0;
  if constexpr (kShort) {  // neighbours of one group go together
    uint32_t* keys = s.keys(q);
    Range range;
#pragma unroll 1
    for (int n = 0; n < segments; ++n) {
      if (s.keys(q) != keys) {
        if (one) add_to_keys(keys, range, q.scheme.unipolar);
        keys = s.keys(q);
        range = Range{};
      }
      range.merge(range_of<kGroup, 1>(q, s, cached + n * kThreads));
      s.advance(q);
    }
    if (one) add_to_keys(keys, range, q.scheme.unipolar);
  } else {
    const Range range = range_of<kGroup, kQuads>(q, s, cached);
    if (one) add_to_keys(s.keys(q), range, q.scheme.unipolar);
  }
}

}  // namespace scmp::cuda
