// The kernel for few rows of a: every block turns a's values at a slice of the K axis into tables
// from b's code to the signed count, and looks up b's codes as they stream by.
#pragma once

#include <string>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Empty when the kernel can run the problem; else why not.
std::string few_rows_refuses(const GemmProblem& problem, const DeviceLimits& device);

/// Parts per chunk into which the K axis is cut: the caller provides p.partial for all of them.
int64_t few_rows_parts(const GemmProblem& problem, const DeviceLimits& device);

/// Fills p.partial; finish() does the rest. One launch.
void few_rows_gemm(const GemmProblem& problem, const DeviceLimits& device, cudaStream_t stream);

}  // namespace scmp::cuda
