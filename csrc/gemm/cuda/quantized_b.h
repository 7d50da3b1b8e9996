// A b that was quantized before, as the kernels get it that stage its codes for exchanged operands.
#pragma once

#include <cstdint>

namespace scmp::cuda {

struct QuantizedB {
  int64_t batches = 1, rows = 0, columns = 0;
  int64_t chunk = 0, chunks = 1;   // columns per chunk (columns when one)
  const int16_t* codes = nullptr;  // (batches, rows, columns) sign * code
  const float* scales = nullptr;   // (batches, chunks, rows)
  int levels = 0;
  const int32_t* lane_of = nullptr;  // per position, or null: position modulo lanes
  int64_t lanes = 1;
  // Outputs: sign * cycles in stages, as the kernel says, and scales (batches * rows, chunks), NaN
  // for rows with codes off the grid.
  int16_t* staged = nullptr;
  float* row_scales = nullptr;
};

}  // namespace scmp::cuda
