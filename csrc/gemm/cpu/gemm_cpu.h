// The host interface of the CPU kernels: picks one that can run the problem.
#pragma once

#include "common/parallel.h"
#include "cpu/isa.h"
#include "gemm/problem.h"

namespace scmp {

void cpu_gemm(const GemmProblem& problem, CpuKernel kernel, const ParallelFor& parallel);

}  // namespace scmp
