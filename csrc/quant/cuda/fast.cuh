// The kernel for the usual case, without the choices of the general one: bipolar codes, every
// segment its own group, values in aligned groups of four, boundaries by multiplication. kCycles:
// a's codes enable another number of cycles, by a table.
#pragma once

#include "quant/cuda/range.cuh"
#include "quant/cuda/share.cuh"
#include "quant/cuda/write.cuh"

namespace scmp::cuda {

// kQuads groups of four, read as one batch.
template <DType kDType, int kStep>
__device__ __forceinline__ void read_batch(const void* data, int64_t from, int count, int lane,
                                           float4 (&x)[kQuads]) {
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int i = 4 * (lane + j * kStep);
    x[j] = i < count ? load_quad<kDType>(data, from + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

template <int kStep>
__device__ __forceinline__ void read_batch(DType dtype, const void* data, int64_t from, int count,
                                           int lane, float4 (&x)[kQuads]) {
  switch (dtype) {
    case DType::float16:
      return read_batch<DType::float16, kStep>(data, from, count, lane, x);
    case DType::bfloat16:
      return read_batch<DType::bfloat16, kStep>(data, from, count, lane, x);
    case DType::float64:
      return read_batch<DType::float64, kStep>(data, from, count, lane, x);
    default:
      return read_batch<DType::float32, kStep>(data, from, count, lane, x);
  }
}

// One group of four of each of kQuads short segments, read as one batch.
template <DType kDType>
__device__ __forceinline__ void read_each(const void* data, const int64_t (&from)[kQuads],
                                          const int (&count)[kQuads], float4 (&x)[kQuads]) {
  const int i = 4 * (threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    x[j] =
        i < count[j] ? load_quad<kDType>(data, from[j] + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

__device__ __forceinline__ void read_each(DType dtype, const void* data,
                                          const int64_t (&from)[kQuads], const int (&count)[kQuads],
                                          float4 (&x)[kQuads]) {
  switch (dtype) {
    case DType::float16:
      return read_each<DType::float16>(data, from, count, x);
    case DType::bfloat16:
      return read_each<DType::bfloat16>(data, from, count, x);
    case DType::float64:
      return read_each<DType::float64>(data, from, count, x);
    default:
      return read_each<DType::float32>(data, from, count, x);
  }
}

// The same of up to kQuads short segments from `s` on.
__device__ __forceinline__ void read_short(const QuantizeArgs& q, Segment s, int segments,
                                           float4 (&x)[kQuads]) {
  int64_t starts[kQuads];
  int counts[kQuads];
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    starts[j] = s.offset + s.first;
    counts[j] = j < segments ? static_cast<int>(s.count) : 0;
    s.advance(q);
  }
  read_each(q.source.dtype, q.source.data, starts, counts, x);
}

__device__ __forceinline__ uint32_t most_of(const float4& x) {
  return max(max(Range::bits_of(x.x), Range::bits_of(x.y)),
             max(Range::bits_of(x.z), Range::bits_of(x.w)));
}

// Four codes from values divided by, or multiplied with, one number.
struct FastCodes {
  float factor, reciprocal;
  uint32_t multiplier, bias;
  int shift;
  bool divide, slow;

  __device__ FastCodes(const QuantizeArgs& q, const Affine& map)
      : factor(map.factor), multiplier(q.multiplier), bias(q.bias), shift(q.shift) {
    divide = q.scheme.rounding == Rounding::divide;
    reciprocal = divide ? f32_div(1.0f, factor) : 0.0f;
    slow = divide && !(factor > 0x1p-60f && factor < 0x1p100f);  // as in Leveler
    if (isnan(map.scale)) multiplier = bias = 0;                 // all codes are 0
  }
  // No clamp: a value is at most the range, whose level is qmax. Rounding is symmetric.
  __device__ __forceinline__ int code(float r) const {
    const auto level = static_cast<uint32_t>(__float2int_rn(fabsf(r)));
    const int code = static_cast<int>((level * multiplier + bias) >> shift);
    return r < 0.0f ? -code : code;
  }
  __device__ __forceinline__ float divided(float x) const {
    const float guess = f32_mul(x, reciprocal);
    return __fmaf_rn(__fmaf_rn(-guess, factor, x), reciprocal, guess);
  }
  __device__ __forceinline__ int4 operator()(const float4& x) const {
    float4 r;
    if (!divide) {
      r = make_float4(f32_mul(x.x, factor), f32_mul(x.y, factor), f32_mul(x.z, factor),
                      f32_mul(x.w, factor));
    } else if (!slow) {
      r = make_float4(divided(x.x), divided(x.y), divided(x.z), divided(x.w));
    } else {
      r = make_float4(f32_div(x.x, factor), f32_div(x.y, factor), f32_div(x.z, factor),
                      f32_div(x.w, factor));
    }
    return make_int4(code(r.x), code(r.y), code(r.z), code(r.w));
  }
};

// Where a segment's codes go: i is a multiple of four.
template <bool kCycles>
struct FastTarget {
  const QuantizeArgs& q;
  int16_t* to;
  int8_t* signs;         // or null: codes are signed
  int64_t stage_stride;  // 0: in order
  int shift, mask, row, positions;

  __device__ FastTarget(const QuantizeArgs& args, const Segment& s) : q(args) {
    const StageLayout& l = q.layout;
    signs = q.output == Output::bipolar_codes ? q.signs + s.row * q.source.dim + s.first : nullptr;
    if (q.output != Output::staged_cycles) {
      to = q.codes + s.row * q.source.dim + s.first;
      stage_stride = 0;
      shift = 31;
      mask = 0x7fffffff;
      row = 0;
      positions = 8;
    } else {
      shift = __ffs(l.positions) - 1;
      mask = l.positions - 1;
      row = static_cast<int>(s.within);
      positions = l.positions;
      const int64_t stage = s.batch * l.stages + s.chunk * l.stages_per_chunk;
      to = q.codes + ((stage * l.rows_padded + s.within) << shift);
      stage_stride = l.rows_padded << shift;
    }
  }
  /// From the row's first code; of position i of a row `below` rows further down from its first.
  __device__ __forceinline__ int64_t place(int i, int below = 0) const {
    return (i >> shift) * stage_stride + staged_position(row + below, i & mask, positions);
  }
  __device__ __forceinline__ void write(int i, const int4& four) const {
    write_at(place(i), i, four);
  }
  // At another place than that of position i.
  __device__ __forceinline__ void write_at(int64_t place, int i, const int4& four) const {
    int code[4] = {four.x, four.y, four.z, four.w};
    if (signs) {
      *reinterpret_cast<char4*>(signs + i) =
          make_char4(sign(code[0]), sign(code[1]), sign(code[2]), sign(code[3]));
#pragma unroll
      for (int j = 0; j < 4; ++j) code[j] = abs(code[j]);
    }
    if (kCycles) enable_cycles(q, i, code);
    *reinterpret_cast<uint2*>(to + place) = pack(code);
  }

 private:
  __device__ static int8_t sign(int code) { return static_cast<int8_t>((code > 0) - (code < 0)); }
};

template <int kGroup, bool kCycles>
__device__ __forceinline__ void fast_segment(const QuantizeArgs& q, const Segment& s,
                                             const float4* x, int batches, int64_t from) {
  // kQuads groups per batch; batches beyond the first are read again, from the cache.
  const int lane = threadIdx.x % kGroup, count = static_cast<int>(s.count);
  uint32_t most = 0;
#pragma unroll
  for (int j = 0; j < kQuads; ++j) most = max(most, most_of(x[j]));
  for (int b = 1; b < batches; ++b) {
    float4 more[kQuads];
    read_batch<kGroup>(q.source.dtype, q.source.data, from, count, lane + b * kQuads * kGroup,
                       more);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) most = max(most, most_of(more[j]));
  }
  Range range;
  range.magnitude = most;
  const Affine affine = reduce<kGroup>(range, false).affine(q.scheme);
  const FastCodes codes(q, affine);
  const FastTarget<kCycles> target(q, s);
#pragma unroll
  for (int j = 0; j < kQuads; ++j) {
    const int i = 4 * (lane + j * kGroup);
    if (i < count) target.write(i, codes(x[j]));
  }
  for (int b = 1; b < batches; ++b) {
    float4 more[kQuads];
    const int first = lane + b * kQuads * kGroup;
    read_batch<kGroup>(q.source.dtype, q.source.data, from, count, first, more);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int i = 4 * (first + j * kGroup);
      if (i < count) target.write(i, codes(more[j]));
    }
  }
  if (lane == 0) write_row_outputs(q, s, affine);
}

template <bool kCycles>
__device__ __forceinline__ void fast_short_segment(const QuantizeArgs& q, const Segment& s,
                                                   const float4& x) {
  const int i = 4 * (threadIdx.x % 32);
  Range range;
  range.magnitude = most_of(x);
  const Affine affine = reduce<32>(range, false).affine(q.scheme);
  if (i < s.count) FastTarget<kCycles>(q, s).write(i, FastCodes(q, affine)(x));
  if (i == 0) write_row_outputs(q, s, affine);
}

template <Sharing kSharing, bool kCycles>
__global__ void __launch_bounds__(kThreads, 4)
    fast_quantize_kernel(const __grid_constant__ Operands operands) {
  let_next_kernel_start();
  constexpr bool kShort = kSharing == Sharing::short_segments;
  constexpr int kGroup = kSharing == Sharing::block ? kThreads : 32;
  int64_t block;
  const QuantizeArgs& q = operands.args[operand_of_block(operands, block)];
  clear(q, block, operands.blocks[&q != operands.args]);
  const int64_t count = q.source.total_rows() * q.chunks;
  const int64_t index =
      (block * (kThreads / kGroup) + threadIdx.x / kGroup) * (kShort ? kQuads : 1);
  if (index >= count) return;
  Segment s(q, static_cast<uint32_t>(index));
  float4 x[kQuads];
  if constexpr (kShort) {
    const int segments = static_cast<int>(min(int64_t{kQuads}, count - index));
    read_short(q, s, segments, x);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      if (j < segments) fast_short_segment<kCycles>(q, s, x[j]);
      s.advance(q);
    }
  } else {
    const int64_t from = s.offset + s.first;
    read_batch<kGroup>(q.source.dtype, q.source.data, from, static_cast<int>(s.count),
                       threadIdx.x % kGroup, x);
    const int per_batch = 4 * kQuads * kGroup;
    fast_segment<kGroup, kCycles>(q, s, x, (static_cast<int>(s.count) + per_batch - 1) / per_batch,
                                  from);
  }
}

}  // namespace scmp::cuda
