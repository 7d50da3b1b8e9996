// From an exact sum to its output, on the device.
#pragma once

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Output (batch, row, column) from the sum of one chunk; chunks add to `before`.
template <typename Sum>
__device__ __forceinline__ float output_value(const GemmProblem& p, int64_t batch, int64_t row,
                                              int64_t column, int64_t chunk, Sum sum,
                                              float before) {
  const Dequantizer& q = p.dequantizer;
  const int64_t a_row = batch * p.n + row, b_row = batch * p.m + column;
  const float s = static_cast<float>(sum);
  if (p.damaged && p.damaged[b_row] && !(q.row_c && q.row_c[a_row * p.chunks + chunk] == 0.0f)) {
    return __int_as_float(0x7fc00000);
  }
  switch (q.kind) {
    case Epilogue::row:
      return scaled_value(s, q.c, q.a_scale[a_row], q.b_scale[b_row]);
    case Epilogue::head:
      return f32_mul(s, f32_mul(q.c, f32_mul(q.a_scale[a_row], q.b_scale[b_row])));
    case Epilogue::chunk: {
      const float a_scale = q.a_scale[a_row * p.chunks + chunk];
      const float b_scale = q.b_scale[(batch * p.chunks + chunk) * p.m + column];
      return f32_add(before, scaled_value(s, q.c, a_scale, b_scale));
    }
    case Epilogue::row_own_c:
    case Epilogue::chunk_own_c: {
      const float c = q.row_c[a_row * p.chunks + chunk];
      if (c == 0.0f) return before;  // a length of 0 adds nothing, whatever the scales
      const float a_scale = q.a_scale[a_row * p.chunks + chunk];
      const float b_scale = q.b_scale[(batch * p.chunks + chunk) * p.m + column];
      const float value = scaled_value(s, c, a_scale, b_scale);
      return q.kind == Epilogue::row_own_c ? value : f32_add(before, value);
    }
    case Epilogue::tensor: {
      const float scale = static_cast<float>(p.a_tensor[0] * p.b_tensor[0]);
      return f32_mul(f32_mul(s, q.c), scale);
    }
    case Epilogue::unipolar_row: {
      const float a_zero = q.a_zeros[a_row], b_zero = q.b_zeros[b_row];
      return unipolar_value(s, q.c, a_zero, b_zero, q.a_sum[a_row], q.b_sum[b_row],
                            f32_mul(f32_mul(q.depth, a_zero), b_zero),
                            f32_mul(q.a_scale[a_row], q.b_scale[b_row]));
    }
    default: {  // unipolar_tensor
      const double a_zero = p.a_tensor[1], b_zero = p.b_tensor[1];
      const float product = static_cast<float>(static_cast<double>(p.d) * a_zero * b_zero);
      return unipolar_value(s, q.c, static_cast<float>(a_zero), static_cast<float>(b_zero),
                            q.a_sum[a_row], q.b_sum[b_row], product,
                            static_cast<float>(p.a_tensor[0] * p.b_tensor[0]));
    }
  }
}

/// Writes (chunk > 0: adds to) output (batch, row, column).
template <typename Sum>
__device__ __forceinline__ void write_output(const GemmProblem& p, int64_t batch, int64_t row,
                                             int64_t column, int64_t chunk, Sum sum) {
  float* y = p.out + (batch * p.n + row) * p.m + column;
  const float before = chunk == 0 ? 0.0f : *y;
  *y = output_value(p, batch, row, column, chunk, sum, before);
}

}  // namespace scmp::cuda
