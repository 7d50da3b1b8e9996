// Quantize the operands in one launch, then the gemm.
#pragma once

#include "ops/cuda/matmul_problem.h"

namespace scmp::cuda {

/// The kernels read pairs and more at once: a view into the middle of another tensor is copied.
at::Tensor aligned(const at::Tensor& x);

/// a @ b.T as sc_matmul computes it; knobs are checked for both. With a window, a's memory is the
/// convolution's input and its shape that of the lowered rows; with image_rows, positions of an
/// image, a 2D output may come as (images, columns, positions) instead of (rows, columns).
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const MatmulArgs& args,
                    const MatmulKnobs& knobs, const Window& window = {}, int64_t image_rows = 0);

/// The same with a prepared b; the call was checked.
at::Tensor multiply_prepared(const at::Tensor& a, PreparedCall& call, const PreparedArgs& args,
                             const Window& window = {}, int64_t image_rows = 0);

}  // namespace scmp::cuda
