// Problems whose rows (or rows by chunk) have streams of their own lengths.
#pragma once

#include <cstdint>

#include "common/parallel.h"
#include "cpu/isa.h"
#include "gemm/problem.h"

namespace scmp {

/// cpu_gemm with the streams of `spec` cut to `lengths`, (batches * n, chunks) in 0..2**sc_prec,
/// which take the place of spec.length: each row as in a call whose streams all have its length.
/// `problem` comes without streams and cycles, its `out` zeroed.
void row_lengths_gemm(GemmProblem problem, StreamSpec spec, const int16_t* lengths,
                      CpuKernel kernel, const ParallelFor& parallel);

}  // namespace scmp
