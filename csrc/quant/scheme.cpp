#include "quant/scheme.h"

#include <algorithm>
#include <limits>

namespace scmp {
namespace {

double clamp_zero_point(double value, int qmax) {
  return std::min(std::max(value, 0.0), static_cast<double>(qmax)) + 0.0;  // never -0
}

}  // namespace

Affine make_affine(const QuantScheme& scheme, float low, float high) {
  if (scheme.rounding == Rounding::tensor) return make_tensor_affine(scheme, low, high);
  const float reciprocal = f32_div(1.0f, static_cast<float>(scheme.qmax));
  Affine affine;
  const float range = scheme.unipolar ? f32_sub(high, low) : high;
  affine.scale = f32_mul(std::max(range, kRangeFloor), reciprocal);
  if (scheme.unipolar) {
    affine.zero_point =
        static_cast<float>(clamp_zero_point(std::rint(f32_div(-low, affine.scale)), scheme.qmax));
  }
  affine.factor = scheme.rounding == Rounding::divide ? affine.scale : f32_div(1.0f, affine.scale);
  return affine;
}

Affine make_tensor_affine(const QuantScheme& scheme, double low, double high) {
  Affine affine;
  const double range = scheme.unipolar ? high - low : high;
  affine.scale64 = std::max(range, kRangeFloor64) / scheme.qmax;
  if (scheme.unipolar) {
    affine.zero_point64 = clamp_zero_point(std::rint(-low / affine.scale64), scheme.qmax);
  }
  affine.factor = static_cast<float>(1.0 / affine.scale64);
  affine.scale = static_cast<float>(affine.scale64);
  affine.zero_point = static_cast<float>(affine.zero_point64);
  return affine;
}

Affine nonfinite_affine() {
  Affine affine;
  affine.scale = std::numeric_limits<float>::quiet_NaN();
  affine.zero_point = std::numeric_limits<float>::quiet_NaN();
  affine.scale64 = affine.zero_point64 = std::numeric_limits<double>::quiet_NaN();
  return affine;
}

BoundaryMap::BoundaryMap(int qmax, int levels) : table(qmax + 1) {
  for (int64_t q = 0; q <= qmax; ++q) {
    table[q] = static_cast<uint16_t>((2 * q * levels + qmax) / (2 * qmax));
  }
  while ((int64_t{levels} << (shift + 1)) + (int64_t{1} << shift) < (int64_t{1} << 32)) ++shift;
  multiplier = static_cast<uint32_t>(((int64_t{levels} << shift) + qmax / 2) / qmax);
  bias = shift > 0 ? 1u << (shift - 1) : 0u;
  for (uint32_t q = 0; q <= static_cast<uint32_t>(qmax); ++q) {
    if ((q * multiplier + bias) >> shift != table[q]) {
      multiplier = 0;
      return;
    }
  }
}

}  // namespace scmp
