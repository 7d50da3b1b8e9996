// A strided operand in memory, and how its rows are read as float32.
#pragma once

#include <cstdint>

#include "common/float_ops.h"

namespace scmp {

enum class DType { float16, bfloat16, float32, float64 };

enum class Smoothing { none, divide, multiply };

/// A (batches, rows, dim) view; strides in elements.
struct Source {
  const void* data = nullptr;
  DType dtype = DType::float32;
  int64_t batches = 1, rows = 0, dim = 0;
  int64_t batch_stride = 0, row_stride = 0, dim_stride = 1;
  Smoothing smoothing = Smoothing::none;
  const float* smooth_scales = nullptr;  // (dim,), contiguous

  SCMP_DEVICE_CALLABLE int64_t total_rows() const { return batches * rows; }
};

/// Row `row` (counted over batches) as float32 after the smoothing: either the memory itself, or
/// written to `buffer` (dim floats).
const float* read_row(const Source& source, int64_t row, float* buffer);

}  // namespace scmp
