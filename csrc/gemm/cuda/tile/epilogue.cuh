// From an exact sum to its output, on the device.
#pragma once

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Writes (chunk > 0: adds to) output (batch, row, column).
template <typename Sum>
__device__ __forceinline__ void write_output(const GemmProblem& p, int64_t batch, int64_t row,
                                             int64_t column, int64_t chunk, Sum sum) {
  const Dequantizer& q = p.dequantizer;
  const int64_t a_row = batch * p.n + row, b_row = batch * p.m + column;
  float* y = p.out + a_row * p.m + column;
  const float s = static_cast<float>(sum);
  switch (q.kind) {
    case Epilogue::row:
      *y = f32_mul(f32_mul(s, q.c), f32_mul(q.a_scale[a_row], q.b_scale[b_row]));
      break;
    case Epilogue::head:
      *y = f32_mul(s, f32_mul(q.c, f32_mul(q.a_scale[a_row], q.b_scale[b_row])));
      break;
    case Epilogue::chunk: {
      const float scale = f32_mul(q.a_scale[a_row * p.chunks + chunk],
                                  q.b_scale[(batch * p.chunks + chunk) * p.m + column]);
      const float before = chunk == 0 ? 0.0f : *y;
      *y = f32_add(before, f32_mul(f32_mul(s, q.c), scale));
      break;
    }
    case Epilogue::tensor: {
      const float scale = static_cast<float>(p.a_tensor->scale64 * p.b_tensor->scale64);
      *y = f32_mul(f32_mul(s, q.c), scale);
      break;
    }
    case Epilogue::unipolar_row: {
      const float a_zero = q.a_zeros[a_row], b_zero = q.b_zeros[b_row];
      *y = unipolar_value(s, q.c, a_zero, b_zero, q.a_sum[a_row], q.b_sum[b_row],
                          f32_mul(f32_mul(q.depth, a_zero), b_zero),
                          f32_mul(q.a_scale[a_row], q.b_scale[b_row]));
      break;
    }
    case Epilogue::unipolar_tensor: {
      const Affine &a = *p.a_tensor, &b = *p.b_tensor;
      const float product =
          static_cast<float>(static_cast<double>(p.d) * a.zero_point64 * b.zero_point64);
      *y = unipolar_value(s, q.c, a.zero_point, b.zero_point, q.a_sum[a_row], q.b_sum[b_row],
                          product, static_cast<float>(a.scale64 * b.scale64));
      break;
    }
  }
}

}  // namespace scmp::cuda
