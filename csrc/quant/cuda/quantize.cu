#include <algorithm>

#include "common/error.h"
#include "gemm/cuda/lanes.cuh"
#include "quant/cuda/quantize.h"
#include "quant/cuda/range.cuh"
#include "quant/cuda/segment.cuh"

namespace scmp::cuda {
namespace {

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

// Four levels at once from values of one group.
struct Leveler {
  enum class Way { multiply, divide, slow_divide, divide_add, slow_divide_add, multiply_add };
  Affine affine;
  Way way;
  int least, most;
  float reciprocal = 0.0f;
  bool dead, skip_nonfinite;

  __device__ Leveler(const QuantizeArgs& q, const Affine& map) : affine(map) {
    dead = isnan(affine.scale);
    skip_nonfinite = q.range_from == RangeFrom::argument;
    most = q.scheme.qmax;
    least = q.scheme.unipolar ? 0 : -most;
    if (q.scheme.rounding != Rounding::divide) {
      way = q.scheme.unipolar ? Way::multiply_add : Way::multiply;
      return;
    }
    reciprocal = f32_div(1.0f, affine.factor);
    // Between these bounds a quotient corrected once by its exact remainder is correctly rounded
    // (Markstein 1990), or so small that it rounds to level 0 either way.
    const bool fast = affine.factor > 0x1p-60f && affine.factor < 0x1p100f;
    way = q.scheme.unipolar ? (fast ? Way::divide_add : Way::slow_divide_add)
                            : (fast ? Way::divide : Way::slow_divide);
  }

  __device__ float quotient(float x) const {
    const float guess = f32_mul(x, reciprocal);
    const float r = __fmaf_rn(__fmaf_rn(-guess, affine.factor, x), reciprocal, guess);
    return fabsf(guess) < 0x1p30f ? r : guess;  // past that it is clamped, and may be infinite
  }
  __device__ int clamped(float r) const {  // the conversion rounds half to even and saturates
    return min(max(__float2int_rn(r), least), most);
  }
  template <typename Unrounded>
  __device__ static void each(const float (&x)[4], int (&level)[4], const Unrounded& f) {
#pragma unroll
    for (int j = 0; j < 4; ++j) level[j] = f(x[j]);
  }

  __device__ void operator()(const float (&x)[4], int (&level)[4]) const {
    const float factor = affine.factor, zero = affine.zero_point;
    switch (way) {
      case Way::multiply:
        each(x, level, [&](float v) { return clamped(f32_mul(v, factor)); });
        break;
      case Way::divide:
        each(x, level, [&](float v) { return clamped(quotient(v)); });
        break;
      case Way::divide_add:
        each(x, level, [&](float v) { return clamped(f32_add(quotient(v), zero)); });
        break;
      case Way::multiply_add:
        each(x, level, [&](float v) { return clamped(__fmaf_rn(v, factor, zero)); });
        break;
      case Way::slow_divide:
        each(x, level, [&](float v) { return clamped(f32_div(v, factor)); });
        break;
      case Way::slow_divide_add:
        each(x, level, [&](float v) { return clamped(f32_add(f32_div(v, factor), zero)); });
        break;
    }
    if (dead) each(x, level, [](float) { return 0; });
    if (skip_nonfinite) {
#pragma unroll
      for (int j = 0; j < 4; ++j) level[j] = isfinite(x[j]) ? level[j] : 0;
    }
  }
};

// The codes of four levels' magnitudes.
__device__ void boundaries_of(const QuantizeArgs& q, const int (&level)[4], int (&code)[4]) {
  if (q.multiplier != 0) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      code[j] = static_cast<int>((static_cast<uint32_t>(abs(level[j])) * q.multiplier + q.bias) >>
                                 q.shift);
    }
    return;
  }
  const uint32_t qmax = q.scheme.qmax;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    code[j] = static_cast<int>((2u * abs(level[j]) * q.levels + qmax) / (2u * qmax));
  }
}

__device__ uint2 pack(const int (&code)[4]) {
  return make_uint2((code[0] & 0xffff) | code[1] << 16, (code[2] & 0xffff) | code[3] << 16);
}

template <typename T>
__device__ bool holds_quad(const T* to, int64_t room) {
  return room >= 4 && reinterpret_cast<uintptr_t>(to) % (4 * sizeof(T)) == 0;
}

__device__ void write_four(int16_t* to, const int (&code)[4], int64_t room) {
  if (holds_quad(to, room)) {
    *reinterpret_cast<uint2*>(to) = pack(code);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    if (j < room) to[j] = static_cast<int16_t>(code[j]);
  }
}
__device__ void write_four(int32_t* to, const int (&code)[4], int64_t room) {
  if (holds_quad(to, room)) {
    *reinterpret_cast<int4*>(to) = make_int4(code[0], code[1], code[2], code[3]);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    if (j < room) to[j] = code[j];
  }
}
__device__ void write_four(int8_t* to, const int (&code)[4], int64_t room) {
  if (holds_quad(to, room)) {
    *reinterpret_cast<char4*>(to) = make_char4(code[0], code[1], code[2], code[3]);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    if (j < room) to[j] = static_cast<int8_t>(code[j]);
  }
}
__device__ void write_four(float* to, const float (&level)[4], int64_t room) {
  if (holds_quad(to, room)) {
    *reinterpret_cast<float4*>(to) = make_float4(level[0], level[1], level[2], level[3]);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    if (j < room) to[j] = level[j];
  }
}

// Operand a: enabled cycles at positions i .. i + 3 of the segment, past its end zeros.
__device__ void write_cycles(const QuantizeArgs& q, const Segment& s, int64_t i, int (&code)[4]) {
  if (q.cycles != nullptr) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (code[j] == 0) continue;
      const int64_t lane = lane_of_position(q.lane_of, q.lanes, i + j);
      const int cycles = q.cycles[lane * (q.levels + 1) + abs(code[j])];
      code[j] = code[j] < 0 ? -cycles : cycles;
    }
  }
  const StageLayout& l = q.layout;
  const int shift = __ffs(l.positions) - 1;
  const int64_t stage = s.batch * l.stages + s.chunk * l.stages_per_chunk + (i >> shift);
  int16_t* to = q.codes + ((stage * l.rows_padded + s.within) << shift) + (i & (l.positions - 1));
  if (l.positions >= 4) {
    *reinterpret_cast<uint2*>(to) = pack(code);
    return;
  }
  const int64_t room = l.stages_per_chunk * l.positions - i;  // neighbours in different stages
  for (int j = 0; j < 4 && j < room; ++j) {
    to[(j >> shift) * (l.rows_padded << shift) + (j & (l.positions - 1))] =
        static_cast<int16_t>(code[j]);
  }
}

// What the caller asked for of levels i .. i + 3 of the segment, which came from the values x.
__device__ void write_levels(const QuantizeArgs& q, const Segment& s, int64_t i,
                             const float (&x)[4], const int (&level)[4], bool dead) {
  const int64_t flat = s.row * q.source.dim + s.first + i, room = s.count - i;
  int code[4];
  if (q.output == Output::symmetric_levels || q.output == Output::asymmetric_levels) {
    float shown[4];  // rint keeps the sign of zero
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float magnitude = static_cast<float>(abs(level[j]));
      shown[j] = q.scheme.unipolar || dead ? magnitude : copysignf(magnitude, x[j]);
      code[j] = level[j] < 0 ? -1 : 1;
    }
    write_four(q.levels_out + flat, shown, room);
    if (q.output == Output::symmetric_levels) write_four(q.signs + flat, code, room);
    return;
  }
  boundaries_of(q, level, code);
  if (q.output == Output::unipolar_codes) return write_four(q.wide_codes + flat, code, room);
  if (q.output == Output::bipolar_codes) {
    int sign[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) sign[j] = (level[j] > 0) - (level[j] < 0);
    write_four(q.codes + flat, code, room);
    return write_four(q.signs + flat, sign, room);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) code[j] = level[j] < 0 ? -code[j] : code[j];
  if (q.output == Output::signed_codes) {
    write_four(q.codes + flat, code, room);
  } else {
    write_cycles(q, s, i, code);
  }
}

__device__ void write_row_outputs(const QuantizeArgs& q, const Segment& s, const Affine& affine) {
  if (q.scales) {
    q.scales[q.scales_transposed ? (s.batch * q.chunks + s.chunk) * q.source.rows + s.within
                                 : s.row * q.chunks + s.chunk] = affine.scale;
  }
  if (q.zeros) q.zeros[s.row] = affine.zero_point;
  if (q.tensor_map && s.row == 0) {
    q.tensor_map[0] = affine.scale64;
    q.tensor_map[1] = affine.zero_point64;
  }
}

// This thread's first kQuads groups of four: of one segment (kGroup threads apart), or of kQuads
// neighbouring short ones; into cached[j * kThreads].
template <DType kDType, int kGroup, bool kShort>
__device__ void load_aligned(const QuantizeArgs& q, Segment s, int64_t segments, float4* cached) {
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
__device__ void load_cached(const QuantizeArgs& q, Segment s, int64_t segments, bool aligned,
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
__device__ Range range_of(const QuantizeArgs& q, const Segment& s, const float4* cached) {
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
__device__ void quantize_segment(const QuantizeArgs& q, const Segment& s, const float4* cached) {
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

// Which of the two operands this block works for, and which of its blocks it is.
__device__ int operand_of_block(const Operands& operands, int64_t& block) {
  block = blockIdx.x;
  const int which = block >= operands.blocks[0];
  if (which) block -= operands.blocks[0];
  return which;
}

__device__ void clear(const QuantizeArgs& q, int64_t block, int64_t blocks) {
  for (int64_t i = block * kThreads + threadIdx.x; i < q.cleared_bytes; i += blocks * kThreads) {
    q.cleared[i] = 0;
  }
}

// How the threads share the segments; the same for both operands, whose chunks are as long.
enum class Sharing { block, warp, short_segments };

Sharing sharing_of(const QuantizeArgs& q) {
  return q.chunk > kWarpSegment    ? Sharing::block
         : q.chunk > kShortSegment ? Sharing::warp
                                   : Sharing::short_segments;
}

template <Sharing kSharing>
__global__ void __launch_bounds__(kThreads, 4)
    quantize_kernel(const __grid_constant__ Operands operands) {
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

// --- The usual case, without the choices of the general kernel: bipolar codes for a gemm, every
// segment its own group, values in aligned groups of four, boundaries by multiplication.

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

__device__ __forceinline__ uint32_t most_of(const float4& x) {
  return max(max(Range::bits_of(x.x), Range::bits_of(x.y)),
             max(Range::bits_of(x.z), Range::bits_of(x.w)));
}

// Four codes from values divided by, or multiplied with, one number.
struct FastCodes {
  float factor, reciprocal;
  uint32_t multiplier, bias;
  int shift;
  bool divide, slow, dead;

  __device__ FastCodes(const QuantizeArgs& q, const Affine& map)
      : factor(map.factor), multiplier(q.multiplier), bias(q.bias), shift(q.shift) {
    divide = q.scheme.rounding == Rounding::divide;
    reciprocal = divide ? f32_div(1.0f, factor) : 0.0f;
    slow = divide && !(factor > 0x1p-60f && factor < 0x1p100f);  // as in Leveler
    dead = isnan(map.scale);
  }
  // No clamp: a value is at most the range, whose level is qmax.
  __device__ __forceinline__ int code(float r) const {
    const int level = __float2int_rn(r), sign = level >> 31;
    const auto magnitude = static_cast<uint32_t>((level ^ sign) - sign);
    const int code = static_cast<int>((magnitude * multiplier + bias) >> shift);
    return dead ? 0 : (code ^ sign) - sign;
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
struct FastTarget {
  int16_t* to;
  int8_t* signs;         // or null: codes are signed
  int64_t stage_stride;  // 0: in order
  int shift, mask;

  __device__ FastTarget(const QuantizeArgs& q, const Segment& s) {
    const StageLayout& l = q.layout;
    signs = q.output == Output::bipolar_codes ? q.signs + s.row * q.source.dim + s.first : nullptr;
    if (q.output != Output::staged_cycles) {
      to = q.codes + s.row * q.source.dim + s.first;
      stage_stride = 0;
      shift = 31;
      mask = 0x7fffffff;
    } else {
      shift = __ffs(l.positions) - 1;
      mask = l.positions - 1;
      const int64_t stage = s.batch * l.stages + s.chunk * l.stages_per_chunk;
      to = q.codes + ((stage * l.rows_padded + s.within) << shift);
      stage_stride = l.rows_padded << shift;
    }
  }
  __device__ __forceinline__ void write(int i, const int4& four) const {
    int code[4] = {four.x, four.y, four.z, four.w};
    if (signs) {
      *reinterpret_cast<char4*>(signs + i) =
          make_char4(sign(code[0]), sign(code[1]), sign(code[2]), sign(code[3]));
#pragma unroll
      for (int j = 0; j < 4; ++j) code[j] = abs(code[j]);
    }
    *reinterpret_cast<uint2*>(to + (i >> shift) * stage_stride + (i & mask)) = pack(code);
  }

 private:
  __device__ static int8_t sign(int code) { return static_cast<int8_t>((code > 0) - (code < 0)); }
};

template <int kGroup>
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
  const FastTarget target(q, s);
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

__device__ __forceinline__ void fast_short_segment(const QuantizeArgs& q, const Segment& s,
                                                   const float4& x) {
  const int i = 4 * (threadIdx.x % 32);
  Range range;
  range.magnitude = most_of(x);
  const Affine affine = reduce<32>(range, false).affine(q.scheme);
  if (i < s.count) FastTarget(q, s).write(i, FastCodes(q, affine)(x));
  if (i == 0) write_row_outputs(q, s, affine);
}

template <Sharing kSharing>
__global__ void __launch_bounds__(kThreads, 4)
    fast_quantize_kernel(const __grid_constant__ Operands operands) {
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
    Segment ahead = s;
    int64_t starts[kQuads];
    int counts[kQuads];
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      starts[j] = ahead.offset + ahead.first;
      counts[j] = j < segments ? static_cast<int>(ahead.count) : 0;
      ahead.advance(q);
    }
    read_each(q.source.dtype, q.source.data, starts, counts, x);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      if (j < segments) fast_short_segment(q, s, x[j]);
      s.advance(q);
    }
  } else {
    const int64_t from = s.offset + s.first;
    read_batch<kGroup>(q.source.dtype, q.source.data, from, static_cast<int>(s.count),
                       threadIdx.x % kGroup, x);
    const int per_batch = 4 * kQuads * kGroup;
    fast_segment<kGroup>(q, s, x, (static_cast<int>(s.count) + per_batch - 1) / per_batch, from);
  }
}

__device__ void add_to_keys(uint32_t* keys, const Range& range, bool unipolar) {
  atomicMax(keys, range.magnitude);
  if (!unipolar) return;
  atomicMax(keys + 1, range.most);
  atomicMax(keys + 2, range.least);
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

int64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::float64:
      return 8;
    default:
      return 4;
  }
}

bool quads_aligned(const QuantizeArgs& q) {
  const Source& s = q.source;
  const int64_t bytes = element_bytes(s.dtype), align = bytes == 8 ? 16 : 4 * bytes;
  const auto multiple = [&](int64_t elements) { return elements * bytes % align == 0; };
  return s.smoothing == Smoothing::none && s.dim_stride == 1 &&
         reinterpret_cast<uintptr_t>(s.data) % align == 0 &&
         (s.total_rows() <= 1 || (multiple(s.row_stride) && multiple(s.batch_stride))) &&
         (q.chunks == 1 || multiple(q.chunk));
}

Operands prepare(const QuantizeArgs* operands, int count) {
  Operands all{};
  for (int i = 0; i < count; ++i) {
    const QuantizeArgs& q = operands[i];
    all.args[i] = q;
    const int64_t segments = q.source.total_rows() * q.chunks;
    require(segments <= kMostSegments, "rows times chunks must be at most ", kMostSegments,
            " on CUDA, got ", segments);
    const Sharing sharing = sharing_of(q);
    const int64_t per_block = sharing == Sharing::block  ? 1
                              : sharing == Sharing::warp ? kThreads / 32
                                                         : kThreads / 32 * kQuads;
    all.blocks[i] = (segments + per_block - 1) / per_block;
    all.aligned[i] = quads_aligned(q);
  }
  return all;
}

// Whether the kernel for the usual case can do it.
bool all_usual(const QuantizeArgs* operands, int count) {
  for (int i = 0; i < count; ++i) {
    const QuantizeArgs& q = operands[i];
    const bool staged = q.output == Output::staged_cycles;
    // Groups of four stay within a row, a chunk and a stage, and fill the last stage.
    const int64_t unit = staged ? std::max(4, q.layout.positions) : 4;
    const bool split = q.output == Output::bipolar_codes;
    // Where a level's code may be 0 its sign would be lost.
    if (split && (2 * q.levels < q.scheme.qmax || reinterpret_cast<uintptr_t>(q.signs) % 4 != 0)) {
      return false;
    }
    if (!(staged || split || q.output == Output::signed_codes) || q.scheme.unipolar ||
        q.scheme.rounding == Rounding::tensor || q.range_from != RangeFrom::segment ||
        q.multiplier == 0 || q.cycles != nullptr || !quads_aligned(q) || q.source.dim % unit != 0 ||
        q.chunk % unit != 0 || reinterpret_cast<uintptr_t>(q.codes) % 8 != 0 || q.sums ||
        q.tensor_map || q.chunk >= (int64_t{1} << 30) || (staged && q.layout.positions < 4)) {
      return false;
    }
  }
  return true;
}

using Kernel = void (*)(Operands);

void launch(const QuantizeArgs* operands, int count, cudaStream_t stream, Kernel block, Kernel warp,
            Kernel short_segments) {
  const Operands all = prepare(operands, count);
  const auto blocks = static_cast<unsigned>(all.blocks[0] + all.blocks[1]);
  if (blocks == 0) return;
  const Sharing sharing = sharing_of(operands[0]);
  const Kernel kernel = sharing == Sharing::block  ? block
                        : sharing == Sharing::warp ? warp
                                                   : short_segments;
  kernel<<<blocks, kThreads, 0, stream>>>(all);
}

}  // namespace

void find_ranges(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  launch(operands, count, stream, find_ranges_kernel<Sharing::block>,
         find_ranges_kernel<Sharing::warp>, find_ranges_kernel<Sharing::short_segments>);
}

void quantize(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  if (all_usual(operands, count)) {
    return launch(operands, count, stream, fast_quantize_kernel<Sharing::block>,
                  fast_quantize_kernel<Sharing::warp>,
                  fast_quantize_kernel<Sharing::short_segments>);
  }
  launch(operands, count, stream, quantize_kernel<Sharing::block>, quantize_kernel<Sharing::warp>,
         quantize_kernel<Sharing::short_segments>);
}

}  // namespace scmp::cuda
