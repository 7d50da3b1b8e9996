// b's codes to the cycles that a transposed problem with sorted columns reads: a copy for every
// length class that some of the columns need.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gemm/cuda/length_classes.h"
#include "gemm/cuda/quantized_b.h"

namespace scmp::cuda {

struct StageClassesArgs : QuantizedB {
  LengthTables tables;
  const uint32_t* needs = nullptr;  // as in SortedRows
  SortedPlaces places;              // of `staged`, which has every class's copy
  int64_t class_stride = 0;
};

/// Fills staged and row_scales. One launch.
void stage_classes(const StageClassesArgs& args, int multiprocessors, cudaStream_t stream);

}  // namespace scmp::cuda
