// The judge of every other kernel.
#pragma once

#include "common/parallel.h"
#include "gemm/problem.h"

namespace scmp {

/// Counts cycle by cycle, exactly as the hardware would. Any shape, any length; slow.
void reference_gemm(const GemmProblem& problem, const ParallelFor& parallel);

/// Ones out of one enable-signal multiplier: stream a drives b's generator.
int64_t count_ones(const uint16_t* a_values, const uint16_t* b_values, int length, int a_code,
                   int b_code);

}  // namespace scmp
