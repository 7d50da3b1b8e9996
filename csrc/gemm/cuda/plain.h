// The kernel for whatever the others refuse: one thread per output, cycle by cycle, 64-bit sums.
#pragma once

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

void plain_gemm(const GemmProblem& problem, cudaStream_t stream);

}  // namespace scmp::cuda
