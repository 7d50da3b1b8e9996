// One sc_matmul as the gemm kernels see it: codes, sequences and an epilogue.
#pragma once

#include <cstdint>
#include <string>

#include "gemm/dequantize.h"
#include "streams/prepare.h"

namespace scmp {

struct GemmProblem {
  int64_t batches = 1, n = 0, m = 0, d = 0;
  int64_t chunk = 0;  // columns per chunk; d when not chunked
  int64_t chunks = 1;
  bool unipolar = false;
  const int16_t* a_codes = nullptr;  // (batches * n, d), sign * code
  const int16_t* b_codes = nullptr;  // (batches * m, d)
  const StreamSet* streams = nullptr;
  std::string stream_key;  // names the sequences in the table cache
  // Where rows have streams of their own lengths (dequantizer.row_c is set then): the lengths, at
  // most the sequences', (batches * n, chunks), and the signed cycles that a's codes enable in
  // them.
  const int16_t* row_lengths = nullptr;
  const int16_t* a_cycles = nullptr;
  Dequantizer dequantizer;
  float* out = nullptr;  // (batches, n, m), contiguous; zeros where row_lengths is set
};

}  // namespace scmp
