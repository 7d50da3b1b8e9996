// One segment (a row, or one chunk of it) and how its values are read: four at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "quant/affine.h"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {

struct Quad {
  float x[4];
};

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

/// Four neighbours whose address is a multiple of their size.
__device__ __forceinline__ Quad load_aligned_quad(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DType::float16: {
      const auto* pairs = reinterpret_cast<const __half2*>(static_cast<const __half*>(data) + i);
      const uint2 raw = *reinterpret_cast<const uint2*>(pairs);
      const float2 low = __half22float2(reinterpret_cast<const __half2&>(raw.x));
      const float2 high = __half22float2(reinterpret_cast<const __half2&>(raw.y));
      return {{low.x, low.y, high.x, high.y}};
    }
    case DType::bfloat16: {
      const uint2 raw =
          *reinterpret_cast<const uint2*>(static_cast<const __nv_bfloat16*>(data) + i);
      return {{__uint_as_float(raw.x << 16), __uint_as_float(raw.x & 0xffff0000u),
               __uint_as_float(raw.y << 16), __uint_as_float(raw.y & 0xffff0000u)}};
    }
    case DType::float64: {
      const auto* pairs = reinterpret_cast<const double2*>(static_cast<const double*>(data) + i);
      const double2 low = pairs[0], high = pairs[1];
      return {{static_cast<float>(low.x), static_cast<float>(low.y), static_cast<float>(high.x),
               static_cast<float>(high.y)}};
    }
    default: {
      const float4 v = *reinterpret_cast<const float4*>(static_cast<const float*>(data) + i);
      return {{v.x, v.y, v.z, v.w}};
    }
  }
}

struct Segment {
  int64_t batch = 0, within = 0, row = 0;  // row = batch * rows + within
  int chunk = 0;
  int64_t first = 0, count = 0;  // columns
  int64_t offset = 0;            // elements to the row's first

  __device__ Segment() {}
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
    chunk = static_cast<int>(c);
    batch = b;
    within = row - batch * s.rows;
    first = chunk * q.chunk;
    count = min(q.chunk, s.dim - first);
    offset = batch * s.batch_stride + within * s.row_stride;
  }

  /// Values i .. i + 3 (i a multiple of 4) after the smoothing; zeros past the end. `aligned`:
  /// groups of four lie together at multiples of their size.
  __device__ Quad read(const QuantizeArgs& q, int64_t i, bool aligned) const {
    const Source& s = q.source;
    Quad quad{};
    const int64_t d = first + i;
    if (aligned && i + 4 <= count) {
      quad = load_aligned_quad(s.dtype, s.data, offset + d);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (i + j < count) quad.x[j] = load(s.dtype, s.data, offset + (d + j) * s.dim_stride);
      }
    }
    if (s.smoothing != Smoothing::none) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (i + j < count) quad.x[j] = smoothed(q, quad.x[j], d + j);
      }
    }
    return quad;
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
  __device__ static float smoothed(const QuantizeArgs& q, float x, int64_t d) {
    const float scale = load(q.smooth_dtype, q.smooth_scales, d * q.smooth_stride);
    if (!(scale > 0.0f && scale < __int_as_float(0x7f800000))) return quiet_nan();
    return q.source.smoothing == Smoothing::divide ? f32_div(x, scale) : f32_mul(x, scale);
  }
};

}  // namespace scmp::cuda
