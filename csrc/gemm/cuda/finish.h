// Second half of a product whose K axis was split.
#pragma once

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Outputs from p.partial: integer parts in any order, chunks in theirs. One launch.
void finish(const GemmProblem& problem, cudaStream_t stream);

}  // namespace scmp::cuda
