// Four values to levels, and levels to codes.
#pragma once

#include "quant/affine.h"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {

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
__device__ inline void boundaries_of(const QuantizeArgs& q, const int (&level)[4], int (&code)[4]) {
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

}  // namespace scmp::cuda
