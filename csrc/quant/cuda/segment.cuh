// One segment (a row, or one chunk of it) and how its values are read: four at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "quant/affine.h"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {

__device__ __forceinline__ float load(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DType::float16:
      return __half2float(static_cast<const __half*>(data)[i]);
    case DType::bfloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case DType::float64:
      return static_cast<float>(static_cast<const double*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

/// Four neighbours whose address is a multiple of their size (of 16 bytes for float64).
template <DType kDType>
__device__ __forceinline__ float4 load_quad(const void* data, int64_t i) {
  if constexpr (kDType == DType::float16) {
    const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const __half*>(data) + i);
    const float2 low = __half22float2(reinterpret_cast<const __half2&>(raw.x));
    const float2 high = __half22float2(reinterpret_cast<const __half2&>(raw.y));
    return make_float4(low.x, low.y, high.x, high.y);
  } else if constexpr (kDType == DType::bfloat16) {
    const uint2 raw = *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(data) + i);
    return make_float4(__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
                       __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u));
  } else if constexpr (kDType == DType::float64) {
    const auto* pairs = reinterpret_cast<const double2*>(static_cast<const double*>(data) + i);
    const double2 low = pairs[0], high = pairs[1];
    return make_float4(static_cast<float>(low.x), static_cast<float>(low.y),
                       static_cast<float>(high.x), static_cast<float>(high.y));
  } else {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(data) + i);
  }
}

/// One element of a lowered input.
static __device__ __noinline__ float window_value(const QuantizeArgs& q, uint32_t batch,
                                                  uint32_t within, uint32_t d) {
  const Window& w = q.window;
  const uint32_t image = within / w.positions, position = within - image * w.positions;
  const uint32_t y = position / w.positions_x, x = position - y * w.positions_x;
  const uint32_t channel = d / w.taps, tap = d - channel * w.taps;
  const uint32_t ky = tap / w.kernel_x, kx = tap - ky * w.kernel_x;
  const int iy = static_cast<int>(y) * w.stride_y - w.pad_y + static_cast<int>(ky) * w.dilation_y;
  const int ix = static_cast<int>(x) * w.stride_x - w.pad_x + static_cast<int>(kx) * w.dilation_x;
  if (iy < 0 || iy >= w.height || ix < 0 || ix >= w.width) return 0.0f;
  return load(q.source.dtype, q.source.data,
              image * w.image_stride + batch * w.group_stride + channel * w.channel_stride +
                  iy * w.y_stride + ix * w.x_stride);
}

/// Calls visit with the type as a constant.
template <typename Visit>
void with_dtype(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::float16:
      return visit(std::integral_constant<DType, DType::float16>{});
    case DType::bfloat16:
      return visit(std::integral_constant<DType, DType::bfloat16>{});
    case DType::float64:
      return visit(std::integral_constant<DType, DType::float64>{});
    default:
      return visit(std::integral_constant<DType, DType::float32>{});
  }
}

struct Segment {
  int64_t batch, within, row;   // row = batch * rows + within
  int64_t chunk, first, count;  // columns first .. first + count - 1
  int64_t offset;               // elements to the row's first

  // 32-bit divisions: the host refuses more segments.
  __device__ Segment(const QuantizeArgs& q, uint32_t index) {
    const Source& s = q.source;
    uint32_t r = index, c = 0, b = 0;
    if (q.chunks > 1) {
      r = index / static_cast<uint32_t>(q.chunks);
      c = index - r * static_cast<uint32_t>(q.chunks);
    }
    if (s.batches > 1) b = r / static_cast<uint32_t>(s.rows);
    row = r;
    chunk = c;
    batch = b;
    within = row - batch * s.rows;
    first = chunk * q.chunk;
    count = min(q.chunk, s.dim - first);
    offset = batch * s.batch_stride + within * s.row_stride;
  }

  /// The segment after this one.
  __device__ void advance(const QuantizeArgs& q) {
    const Source& s = q.source;
    first += q.chunk;
    if (++chunk == q.chunks) {
      chunk = first = 0;
      offset += s.row_stride;
      ++row;
      if (++within == s.rows) {
        within = 0;
        offset = ++batch * s.batch_stride;
      }
    }
    count = min(q.chunk, s.dim - first);
  }

  /// Values i .. i + 3 after the smoothing, zeros past the end.
  __device__ float4 read(const QuantizeArgs& q, int64_t i) const {
    float x[4] = {};
    for (int j = 0; j < 4; ++j) {
      if (i + j < count) x[j] = value(q, first + i + j);
    }
    return make_float4(x[0], x[1], x[2], x[3]);
  }

  /// The range keys of the segment's group.
  __device__ uint32_t* keys(const QuantizeArgs& q) const {
    int64_t group = 0;
    if (q.group_kind == 1) group = batch;
    if (q.group_kind == 0) {
      const int64_t per_batch = (q.source.rows - 1) / q.rows_per_group + 1;
      group = batch * per_batch + within / q.rows_per_group;
    }
    return q.range_keys + (group * q.chunks + chunk) * 3;
  }

 private:
  __device__ float value(const QuantizeArgs& q, int64_t d) const {
    const Source& s = q.source;
    const float x = q.window.taps > 0 ? window_value(q, batch, within, d)
                                      : load(s.dtype, s.data, offset + d * s.dim_stride);
    if (s.smoothing == Smoothing::none) return x;
    const float scale = load(q.smooth_dtype, q.smooth_scales, d * q.smooth_stride);
    if (!(scale > 0.0f && scale < __int_as_float(0x7f800000))) return quiet_nan();
    return s.smoothing == Smoothing::divide ? f32_div(x, scale) : f32_mul(x, scale);
  }
};

}  // namespace scmp::cuda
