// few_rows for streams whose counts fit a byte: tables of counts come ready from memory, one row of
// bytes per position and row of a, so that the lanes of a warp look up without bank conflicts.
#pragma once

#include <string>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Empty when the kernel can run the problem; else why not.
std::string few_rows_bytes_refuses(const GemmProblem& problem, const DeviceLimits& device);

/// Parts per chunk into which the K axis is cut: the caller provides p.partial for all of them.
int64_t few_rows_bytes_parts(const GemmProblem& problem);

/// Fills p.partial; finish() does the rest. One launch.
void few_rows_bytes_gemm(const GemmProblem& problem, const DeviceLimits& device,
                         cudaStream_t stream);

}  // namespace scmp::cuda
