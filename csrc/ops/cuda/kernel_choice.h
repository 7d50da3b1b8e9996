// Which CUDA gemm kernel runs: chosen by what each can do, forceable for tests.
#pragma once

#include <string>
#include <vector>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

enum class Kernel { automatic, mma_b1, plain };

std::vector<std::string> kernel_names();  // without "auto"
/// "auto" undoes; ValueError for another name.
void force_kernel(const std::string& name);
std::string forced_kernel();

/// Bytes of shared memory that a block can have on the current device.
int shared_memory_per_block();

/// The kernel for `problem` on the current device; a forced one that refuses is a ValueError.
Kernel choose_kernel(const GemmProblem& problem);

}  // namespace scmp::cuda
