// From exact integer sums to float32: the epilogue that every kernel ends with.
// Included by files built for different CPUs, hence static functions only.
#pragma once

#include <cstdint>

#include "common/float_ops.h"

namespace scmp {

/// How a sum S becomes y; c = qmax**2 / L.
enum class Epilogue {
  row,             // (S * c) * (scale_a * scale_b)
  head,            // S * (c * (scale_a * scale_b))
  chunk,           // y += (S * c) * (scale_a * scale_b), chunks ascending
  row_own_c,       // row and chunk where rows (or rows by chunk) have streams of their own lengths
  chunk_own_c,     // and so a c of their own; nothing is added where the length is 0
  tensor,          // (S * c) * s, s rounded once from doubles
  unipolar_row,    // zero points undone in float32, scales per row
  unipolar_tensor  // the same with one scale and zero point per tensor
};

struct Dequantizer {
  Epilogue kind = Epilogue::row;
  float qmax_squared = 0.0f;
  float c = 0.0f;
  const float* row_c = nullptr;  // own_c kinds: (batches * n, chunks); 0 where the length is 0
  float tensor_scale = 0.0f;     // tensor kinds: scale_a * scale_b
  float zero_product = 0.0f;     // unipolar_tensor: D * zp_a * zp_b
  float a_zero = 0.0f, b_zero = 0.0f;  // unipolar_tensor
  float depth = 0.0f;                  // D
  int64_t n = 0, m = 0, chunks = 1;
  const float* a_scale = nullptr;  // (batches * n, chunks)
  const float* b_scale = nullptr;  // (batches, chunks, m)
  const float* a_zeros = nullptr;  // (batches * n,), unipolar_row
  const float* b_zeros = nullptr;  // (batches * m,)
  const float* a_sum = nullptr;    // (batches * n,), unipolar kinds
  const float* b_sum = nullptr;    // (batches * m,)
};

/// c of streams of `length` cycles.
SCMP_HOST_DEVICE float length_factor(float qmax_squared, int length) {
  return f32_mul(qmax_squared, f32_div(1.0f, static_cast<float>(length)));
}

/// (S * c) * (scale_a * scale_b): the row and chunk kinds.
SCMP_HOST_DEVICE float scaled_value(float sum, float c, float a_scale, float b_scale) {
  return f32_mul(f32_mul(sum, c), f32_mul(a_scale, b_scale));
}

SCMP_HOST_DEVICE float unipolar_value(float sum, float c, float a_zero, float b_zero, float a_sum,
                                      float b_sum, float zero_product, float scale) {
  const float cross = f32_sub(f32_mul(-b_zero, a_sum), f32_mul(a_zero, b_sum));
  return f32_mul(f32_add(f32_mul(sum, c), f32_add(cross, zero_product)), scale);
}

#if !defined(__CUDACC__)
/// Whether a row's sums over a chunk are wanted: not where its streams have length 0 there.
static inline bool row_counts(const Dequantizer& q, int64_t batch, int64_t row, int64_t chunk) {
  return !q.row_c || q.row_c[(batch * q.n + row) * q.chunks + chunk] != 0.0f;
}

/// Writes (chunk: adds to) `count` outputs of one row, whose sums for columns first.. are in
/// `sums`; nothing where the row does not count.
template <typename Sum>
static inline void dequantize_row(const Dequantizer& q, const Sum* sums, int64_t batch, int64_t row,
                                  int64_t chunk, int64_t first, int64_t count, float* y) {
  const int64_t a_row = batch * q.n + row, b_row = batch * q.m + first;
  const float a_scale = q.a_scale ? q.a_scale[a_row * q.chunks + chunk] : 0.0f;
  const float* b_scale = q.b_scale ? q.b_scale + (batch * q.chunks + chunk) * q.m + first : nullptr;
  const float c = q.row_c ? q.row_c[a_row * q.chunks + chunk] : q.c;
  const float tensor_scale = q.tensor_scale;
  if (q.row_c && c == 0.0f) return;
  switch (q.kind) {
    case Epilogue::row:
    case Epilogue::row_own_c:
      for (int64_t i = 0; i < count; ++i) {
        y[i] = scaled_value(static_cast<float>(sums[i]), c, a_scale, b_scale[i]);
      }
      break;
    case Epilogue::head:
      for (int64_t i = 0; i < count; ++i) {
        y[i] = f32_mul(static_cast<float>(sums[i]), f32_mul(c, f32_mul(a_scale, b_scale[i])));
      }
      break;
    case Epilogue::chunk:
    case Epilogue::chunk_own_c:
      for (int64_t i = 0; i < count; ++i) {
        const float before = chunk == 0 ? 0.0f : y[i];
        y[i] = f32_add(before, scaled_value(static_cast<float>(sums[i]), c, a_scale, b_scale[i]));
      }
      break;
    case Epilogue::tensor:
      for (int64_t i = 0; i < count; ++i) {
        y[i] = f32_mul(f32_mul(static_cast<float>(sums[i]), c), tensor_scale);
      }
      break;
    case Epilogue::unipolar_row: {
      const float a_zero = q.a_zeros[a_row], a_sum = q.a_sum[a_row];
      const float depth_zero = f32_mul(q.depth, a_zero);
      for (int64_t i = 0; i < count; ++i) {
        const float b_zero = q.b_zeros[b_row + i];
        y[i] = unipolar_value(static_cast<float>(sums[i]), c, a_zero, b_zero, a_sum,
                              q.b_sum[b_row + i], f32_mul(depth_zero, b_zero),
                              f32_mul(a_scale, b_scale[i]));
      }
      break;
    }
    case Epilogue::unipolar_tensor: {
      const float a_sum = q.a_sum[a_row];
      for (int64_t i = 0; i < count; ++i) {
        y[i] = unipolar_value(static_cast<float>(sums[i]), c, q.a_zero, q.b_zero, a_sum,
                              q.b_sum[b_row + i], q.zero_product, tensor_scale);
      }
      break;
    }
  }
}
#endif

}  // namespace scmp
