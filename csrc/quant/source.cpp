#include "quant/source.h"

#include "common/float_ops.h"

namespace scmp {
namespace {

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// float16 and bfloat16 are subsets of float32: these conversions are exact.
float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
  if (exponent == 0x1f) return from_bits(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
}

float bfloat16_to_float(uint16_t b) { return from_bits(static_cast<uint32_t>(b) << 16); }

template <typename T, typename Convert>
void convert_row(const T* from, int64_t stride, int64_t count, float* to, const Convert& convert) {
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = convert(from[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = convert(from[i * stride]);
  }
}

}  // namespace

const float* read_row(const Source& source, int64_t row, float* buffer) {
  const int64_t offset =
      row / source.rows * source.batch_stride + row % source.rows * source.row_stride;
  const int64_t stride = source.dim_stride, dim = source.dim;
  const float* values = buffer;
  switch (source.dtype) {
    case DType::float32: {
      const float* from = static_cast<const float*>(source.data) + offset;
      if (stride == 1) {
        values = from;
      } else {
        convert_row(from, stride, dim, buffer, [](float v) { return v; });
      }
      break;
    }
    case DType::float64:
      convert_row(static_cast<const double*>(source.data) + offset, stride, dim, buffer,
                  [](double v) { return static_cast<float>(v); });
      break;
    case DType::float16:
      convert_row(static_cast<const uint16_t*>(source.data) + offset, stride, dim, buffer,
                  half_to_float);
      break;
    case DType::bfloat16:
      convert_row(static_cast<const uint16_t*>(source.data) + offset, stride, dim, buffer,
                  bfloat16_to_float);
      break;
  }
  if (source.smoothing == Smoothing::divide) {
    for (int64_t i = 0; i < dim; ++i) buffer[i] = f32_div(values[i], source.smooth_scales[i]);
    values = buffer;
  } else if (source.smoothing == Smoothing::multiply) {
    for (int64_t i = 0; i < dim; ++i) buffer[i] = f32_mul(values[i], source.smooth_scales[i]);
    values = buffer;
  }
  return values;
}

}  // namespace scmp
