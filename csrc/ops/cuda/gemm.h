// Workspace and launches of one gemm.
#pragma once

#include <ATen/core/Tensor.h>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Runs `problem` on the current stream with the kernel of choice. `expanded` may hold b's bits as
/// expand_bits made them (undefined: none).
void run_gemm(GemmProblem problem, const at::Tensor& like, const at::Tensor& expanded);

/// b's bits of the whole problem for the kernel that reads them; (0,) where no kernel of this
/// device does.
at::Tensor expand_bits(GemmProblem problem, const at::Tensor& like);

}  // namespace scmp::cuda
