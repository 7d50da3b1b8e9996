// The Hopper kernel: wgmma b1 AND-popcount (sm_90a), warp-specialised and persistent.
#pragma once

#include <string>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

constexpr int kInPlaceRows = 128;  // of a, for which b's bits need no workspace

/// Empty when the kernel can run the problem; else why not.
std::string wgmma_b1_refuses(const GemmProblem& problem, const DeviceLimits& device);

/// Whether the problem's bits go through memory; else blocks expand them where they multiply, and
/// wgmma_b1_gemm is one launch without a workspace.
bool wgmma_b1_needs_workspace(const GemmProblem& problem);

/// Bytes that hold b's bits of `tiles` tiles of 128 columns. Tiles are those of mma_b1; the order
/// of bits within a stage is this kernel's own.
int64_t wgmma_b1_workspace(const GemmProblem& problem, int64_t tiles);

/// Parts per chunk that fill the device; see mma_b1_parts.
int64_t wgmma_b1_parts(const GemmProblem& problem, int64_t tiles, const DeviceLimits& device);

/// As mma_b1_gemm and mma_b1_expand, but one launch per slab of `tiles` tiles, or two where rows
/// are sorted.
void wgmma_b1_gemm(const GemmProblem& problem, void* workspace, int64_t tiles, bool expanded,
                   const DeviceLimits& device, cudaStream_t stream);
void wgmma_b1_expand(const GemmProblem& problem, void* workspace, cudaStream_t stream);

}  // namespace scmp::cuda
