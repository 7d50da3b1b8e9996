// The portable kernel: mma.sync b1 AND-popcount (sm_80 to sm_90).
#pragma once

#include <string>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Empty when the kernel can run the problem; else why not.
std::string mma_b1_refuses(const GemmProblem& problem, const DeviceLimits& device);

/// Bytes that hold b's bits of `tiles` tiles of 128 columns.
int64_t mma_b1_workspace(const GemmProblem& problem, int64_t tiles);

/// Parts per chunk (of one chunk; of chunked problems chunks are the parts) that fill the device
/// when slabs of `tiles` tiles do not; 1: do not split.
int64_t mma_b1_parts(const GemmProblem& problem, int64_t tiles, const DeviceLimits& device);

/// Expands b's bits slab by slab into `workspace` (16-byte aligned, `tiles` tiles at a time; with
/// `expanded` it holds all of them already) and multiplies. One launch, cooperative where slabs
/// need the whole grid to wait.
void mma_b1_gemm(const GemmProblem& problem, void* workspace, int64_t tiles, bool expanded,
                 const DeviceLimits& device, cudaStream_t stream);

/// b's bits of the whole problem into `workspace`. One launch.
void mma_b1_expand(const GemmProblem& problem, void* workspace, cudaStream_t stream);

/// Positions per stage that operand a must be laid out with.
int mma_b1_positions(int words);

}  // namespace scmp::cuda
