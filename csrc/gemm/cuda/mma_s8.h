// The int8 kernel: mma.sync s8 on streams of bytes in {-1, 0, 1} (sm_80 and later; for GPUs that
// emulate b1 products).
#pragma once

#include <string>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Empty when the kernel can run the problem; else why not.
std::string mma_s8_refuses(const GemmProblem& problem, const DeviceLimits& device);

/// Parts per chunk (of one chunk; of chunked problems chunks are the parts) that fill the device.
int64_t mma_s8_parts(const GemmProblem& problem, const DeviceLimits& device);

/// No workspace. One launch.
void mma_s8_gemm(const GemmProblem& problem, const DeviceLimits& device, cudaStream_t stream);

}  // namespace scmp::cuda
