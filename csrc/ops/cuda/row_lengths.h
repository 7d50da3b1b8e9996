// sc_matmul on CUDA with streams whose lengths differ by row, or by row and chunk.
#pragma once

#include "ops/sc_matmul.h"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {

/// With SCMP_SYNC_CHECKS=1: the lengths' values, checked as on the CPU.
void sync_check_lengths(const at::Tensor& a, const LengthArgs& lengths, const MatmulKnobs& knobs);

/// The product of a with b, neither empty; b's smoothing is applied to a. `b_work` is what fills
/// b's tensors, or null where they are filled. No sync.
at::Tensor multiply_by_row(const at::Tensor& a, const Prepared& b, const QuantizeArgs* b_work,
                           const LengthArgs& lengths, const MatmulKnobs& knobs,
                           const Window& window);

}  // namespace scmp::cuda
