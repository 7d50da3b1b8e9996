// Codes of a prepared b to the cycles that a transposed problem reads in stages.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "quant/cuda/quantize.h"

namespace scmp::cuda {

struct StageCodesArgs {
  int64_t batches = 1, rows = 0, columns = 0;
  int64_t chunk = 0, chunks = 1;   // columns per chunk (columns when one)
  const int16_t* codes = nullptr;  // (batches, rows, columns) sign * code
  const float* scales = nullptr;   // (batches, chunks, rows)
  int levels = 0;
  const uint16_t* cycles = nullptr;  // (lanes, levels + 1) cycles of a code; null: as many as it
  const int32_t* lane_of = nullptr;  // per position, or null: position modulo lanes
  int64_t lanes = 1;
  StageLayout layout;           // of the output
  int16_t* staged = nullptr;    // sign * cycles, in `layout`
  float* row_scales = nullptr;  // (batches * rows, chunks): NaN for rows with codes off the grid
};

/// Fills staged and row_scales. One launch.
void stage_codes(const StageCodesArgs& args, cudaStream_t stream);

}  // namespace scmp::cuda
