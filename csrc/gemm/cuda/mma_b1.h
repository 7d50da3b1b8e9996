// The portable kernel: mma.sync b1 AND-popcount (sm_80 and later).
#pragma once

#include <string>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Empty when the kernel can run the problem on a device of compute capability `major` with this
/// much shared memory per block; else why not.
std::string mma_b1_refuses(const GemmProblem& problem, int major, int shared_memory);

/// Bytes of workspace that hold b's bits of `tiles` tiles of 128 columns.
int64_t mma_b1_workspace(const GemmProblem& problem, int64_t tiles);
int64_t mma_b1_tiles(const GemmProblem& problem);

/// One slab: expands b's bits of tiles [first, first + count) into `workspace` (16-byte aligned)
/// and multiplies. Two launches.
void mma_b1_gemm(const GemmProblem& problem, void* workspace, int64_t first, int64_t count,
                 int shared_memory, cudaStream_t stream);

/// Positions per stage that operands must be laid out with.
int mma_b1_positions(int words);

}  // namespace scmp::cuda
