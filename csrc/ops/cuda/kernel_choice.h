// Which CUDA gemm kernel runs: chosen by what each can do, forceable for tests.
#pragma once

#include <string>
#include <vector>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

enum class Kernel { automatic, few_rows, wgmma_b1, mma_b1, mma_s8, plain };

std::vector<std::string> kernel_names();  // without "auto"
/// "auto" undoes; ValueError for another name.
void force_kernel(const std::string& name);
std::string forced_kernel();

DeviceLimits current_device_limits();

/// The kernel for `problem`; a forced one that refuses is a ValueError that says why.
Kernel choose_kernel(const GemmProblem& problem, const DeviceLimits& device);

}  // namespace scmp::cuda
