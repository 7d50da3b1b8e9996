// Codes of a prepared b to the cycles that a transposed problem reads in stages.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gemm/cuda/quantized_b.h"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {

struct StageCodesArgs : QuantizedB {
  const uint16_t* cycles = nullptr;  // (lanes, levels + 1) cycles of a code; null: as many as it
  StageLayout layout;                // of `staged`
};

/// Fills staged and row_scales. One launch.
void stage_codes(const StageCodesArgs& args, cudaStream_t stream);

}  // namespace scmp::cuda
