// Workspace and launches of one gemm.
#pragma once

#include <ATen/core/Tensor.h>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Whether a call, whose problem as it would run otherwise is given (without pointers yet), is
/// faster with a and b exchanged: a is smaller, and its bits are expanded instead of b's.
bool better_transposed(const GemmProblem& problem);

/// Whether the output can be written as (images, columns, rows of an image), and how to ask for it.
bool can_write_images(const GemmProblem& problem);
void write_images(GemmProblem& problem, int64_t image_rows);

/// Runs `problem` on the current stream with the kernel of choice. `expanded` may hold b's bits as
/// expand_bits made them (undefined: none).
void run_gemm(GemmProblem problem, const at::Tensor& like, const at::Tensor& expanded);

/// b's bits of the whole problem for the kernel that reads them; (0,) where no kernel of this
/// device does.
at::Tensor expand_bits(GemmProblem problem, const at::Tensor& like);

}  // namespace scmp::cuda
