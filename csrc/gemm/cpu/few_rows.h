// The kernel for few rows of a: no packing of b, whose codes are read once.
#pragma once

#include "common/parallel.h"
#include "gemm/problem.h"

namespace scmp {

/// Whether its tables are worth their room: few rows, and a grid that is not too fine.
bool few_rows_fits(const GemmProblem& problem);

void few_rows_gemm(const GemmProblem& problem, const ParallelFor& parallel);

}  // namespace scmp
