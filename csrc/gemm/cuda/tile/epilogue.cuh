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
      *y = scaled_value(s, q.c, q.a_scale[a_row], q.b_scale[b_row]);
      break;
    case Epilogue::head:
      *y = f32_mul(s, f32_mul(q.c, f32_mul(q.a_scale[a_row], q.b_scale[b_row])));
      break;
    case Epilogue::chunk: {
      const float a_scale = q.a_scale[a_row * p.chunks + chunk];
      const float b_scale = q.b_scale[(batch * p.chunks + chunk) * p.m + column];
      const float before = chunk == 0 ? 0.0f : *y;
      *y = f32_add(before, scaled_value(s, q.c, a_scale, b_scale));
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

/// What all outputs of a tile of columns share.
struct OutputTile {
  const GemmProblem& p;
  int64_t batch, chunk, first_column, columns;  // columns that exist
  const float* b_scale;                         // of the first column
  bool scaled;                                  // (S * c) * (scale_a * scale_b): the usual kinds
  bool paired;                                  // pairs of outputs and scales are aligned

  __device__ OutputTile(const GemmProblem& problem, int64_t batch_, int64_t chunk_, int64_t first)
      : p(problem), batch(batch_), chunk(chunk_), first_column(first), columns(problem.m - first) {
    b_scale = p.dequantizer.b_scale + (batch * p.chunks + chunk) * p.m + first;
    const Epilogue kind = p.dequantizer.kind;
    scaled = kind == Epilogue::row || kind == Epilogue::chunk;
    paired = p.m % 2 == 0;
  }
};

/// One row of it; `column` is even and stands for the pair (column, column + 1).
struct OutputRow {
  const OutputTile& tile;
  int64_t row;
  float* y;
  float a_scale;

  __device__ OutputRow(const OutputTile& t, int64_t row_) : tile(t), row(row_) {
    const GemmProblem& p = tile.p;
    const int64_t a_row = tile.batch * p.n + row;
    y = p.out + a_row * p.m + tile.first_column;
    a_scale = p.dequantizer.a_scale[a_row * p.chunks + tile.chunk];
  }

  __device__ float2 pair_at(const float* values, int column) const {
    if (tile.paired && column < tile.columns) {
      return *reinterpret_cast<const float2*>(values + column);
    }
    return make_float2(column < tile.columns ? values[column] : 0.0f,
                       column + 1 < tile.columns ? values[column + 1] : 0.0f);
  }
  __device__ float2 load(int column) const { return pair_at(y, column); }
  __device__ void store(int column, float2 value) const {
    if (tile.paired && column < tile.columns) {
      *reinterpret_cast<float2*>(y + column) = value;
    } else {
      if (column < tile.columns) y[column] = value.x;
      if (column + 1 < tile.columns) y[column + 1] = value.y;
    }
  }

  /// The pair's outputs where the tile is `scaled`: chunks add to `before`.
  template <typename Sum>
  __device__ float2 value(int column, Sum first, Sum second, float2 before) const {
    const float2 scale = pair_at(tile.b_scale, column);
    const float c = tile.p.dequantizer.c;
    const float2 added = {scaled_value(static_cast<float>(first), c, a_scale, scale.x),
                          scaled_value(static_cast<float>(second), c, a_scale, scale.y)};
    if (tile.p.dequantizer.kind == Epilogue::row) return added;
    return {f32_add(before.x, added.x), f32_add(before.y, added.y)};
  }
  /// The other kinds, straight to the output.
  template <typename Sum>
  __device__ void write_unscaled(int column, Sum first, Sum second) const {
    const int64_t at = tile.first_column + column;
    if (column < tile.columns) write_output(tile.p, tile.batch, row, at, tile.chunk, first);
    if (column + 1 < tile.columns) {
      write_output(tile.p, tile.batch, row, at + 1, tile.chunk, second);
    }
  }
};

}  // namespace scmp::cuda
