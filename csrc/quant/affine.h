// From a group's range to its affine map: the same inline arithmetic on host and device.
#pragma once

#include "common/float_ops.h"
#include "quant/scheme.h"

namespace scmp {

constexpr float kRangeFloor = 1e-5f;    // the smallest range a scale is made from
constexpr double kRangeFloor64 = 1e-5;  // per_tensor, in double

SCMP_HOST_DEVICE float quiet_nan() {
#if defined(__CUDA_ARCH__)
  return __int_as_float(0x7fc00000);
#else
  return __builtin_nanf("");
#endif
}

SCMP_HOST_DEVICE double clamp_zero_point(double value, int qmax) {
  const double top = qmax;
  value = value > 0.0 ? value : 0.0;  // never -0
  return value < top ? value : top;
}

/// The map of the range [low, high] in double (bipolar: amax in `high`).
SCMP_HOST_DEVICE Affine make_tensor_affine(const QuantScheme& scheme, double low, double high) {
  Affine affine;
  const double range = scheme.unipolar ? high - low : high;
  affine.scale64 = (range > kRangeFloor64 ? range : kRangeFloor64) / scheme.qmax;
  if (scheme.unipolar) {
    affine.zero_point64 = clamp_zero_point(rint(-low / affine.scale64), scheme.qmax);
  }
  affine.factor = static_cast<float>(1.0 / affine.scale64);
  affine.scale = static_cast<float>(affine.scale64);
  affine.zero_point = static_cast<float>(affine.zero_point64);
  return affine;
}

SCMP_HOST_DEVICE float reciprocal_qmax(const QuantScheme& scheme) {
  return f32_div(1.0f, static_cast<float>(scheme.qmax));
}

/// A scale from a range, and what values are divided by or multiplied with.
SCMP_HOST_DEVICE void set_scale(const QuantScheme& scheme, float range, float reciprocal,
                                Affine& affine) {
  affine.scale = f32_mul(range > kRangeFloor ? range : kRangeFloor, reciprocal);
  affine.factor = scheme.rounding == Rounding::divide ? affine.scale : f32_div(1.0f, affine.scale);
}

/// The map of one bipolar group with the largest magnitude `amax`; not for Rounding::tensor.
SCMP_HOST_DEVICE Affine make_bipolar_affine(const QuantScheme& scheme, float amax,
                                            float reciprocal) {
  Affine affine;
  set_scale(scheme, amax, reciprocal, affine);
  return affine;
}

/// The map of one group with finite extremes `low` and `high` (bipolar: amax in `high`).
SCMP_HOST_DEVICE Affine make_affine(const QuantScheme& scheme, float low, float high) {
  if (scheme.rounding == Rounding::tensor) return make_tensor_affine(scheme, low, high);
  if (!scheme.unipolar) return make_bipolar_affine(scheme, high, reciprocal_qmax(scheme));
  Affine affine;
  set_scale(scheme, f32_sub(high, low), reciprocal_qmax(scheme), affine);
  affine.zero_point =
      static_cast<float>(clamp_zero_point(rintf(f32_div(-low, affine.scale)), scheme.qmax));
  return affine;
}

/// The map of a group that holds NaN or Inf.
SCMP_HOST_DEVICE Affine nonfinite_affine() {
  Affine affine;
  affine.scale = affine.zero_point = quiet_nan();
  affine.scale64 = affine.zero_point64 = quiet_nan();
  return affine;
}

}  // namespace scmp
