// b's codes to the cycles that a transposed problem with sorted columns reads: a copy for every
// length class that some of the columns need.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gemm/cuda/length_classes.h"

namespace scmp::cuda {

struct StageClassesArgs {
  int64_t batches = 1, rows = 0, columns = 0;
  int64_t chunk = 0, chunks = 1;   // columns per chunk (columns when one)
  const int16_t* codes = nullptr;  // (batches, rows, columns) sign * code
  const float* scales = nullptr;   // (batches, chunks, rows)
  int levels = 0;
  const int32_t* lane_of = nullptr;  // per position, or null: position modulo lanes
  int64_t lanes = 1;
  LengthTables tables;
  const uint32_t* needs = nullptr;  // as in SortedRows
  SortedPlaces places;              // of the output
  int64_t class_stride = 0;
  int16_t* staged = nullptr;    // sign * ones in the class's cycles
  float* row_scales = nullptr;  // (batches * rows, chunks): NaN for rows with codes off the grid
};

/// Fills staged and row_scales. One launch.
void stage_classes(const StageClassesArgs& args, int multiprocessors, cudaStream_t stream);

}  // namespace scmp::cuda
