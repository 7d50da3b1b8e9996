// Operand a where rows (or rows by chunk) have streams of their own lengths: codes to the cycles
// that they enable in those, in the order in which the gemm kernels read them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "gemm/cuda/length_classes.h"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {

/// a's sequences as device tables, for streams of any length.
struct CycleTables {
  int length = 0, levels = 0, words = 0;  // words: a power of two where at most 8
  int64_t lanes = 0;
  const int32_t* lane_of = nullptr;  // per position, or null: position modulo lanes
  const uint16_t* values = nullptr;  // (lanes, length)
  const uint32_t* bits = nullptr;    // (lanes, levels + 1, words) bit t: value t < code; or null
};

struct RowLengthArgs {
  int64_t batches = 1, rows = 0, columns = 0;
  int64_t chunk = 0, chunks = 1;   // columns per chunk (columns when one)
  const int16_t* codes = nullptr;  // (batches, rows, columns) sign * code
  const int32_t* lengths =
      nullptr;  // (batches * rows, chunks), or (batches * rows,) for all chunks
  bool length_per_chunk = false;
  int longest = 0;            // others are out of range: such a row's c is NaN
  int full = 0;               // where not 0, the length of a full stream, which is another one: the
                              // output has every position twice, as shortened and as full
  float qmax_squared = 0.0f;  // of c
  CycleTables tables;         // of the output's positions
  StageLayout layout;         // of the output
  int16_t* cycles = nullptr;  // sign * enabled cycles, in `layout`, or sorted in SortedPlaces
  int32_t* row_order = nullptr;  // where set, rows are sorted: see SortedRows
  int32_t* row_words = nullptr;
  uint32_t* row_needs = nullptr;
  int block_rows = kWgmmaRows;  // that row_words counts together
  float* row_c = nullptr;       // (batches * rows, chunks): c, 0 where the length is 0
};

/// Lengths as callers give them.
struct NormalLengthsArgs {
  int64_t count = 0;
  const void* given = nullptr;  // int32, or int64
  bool wide = false;
  int longest = 0;
  int32_t* out = nullptr;
};

/// Makes int32 of lengths, or with `levels` of indices into them; those out of range become -1. One
/// launch (one for every 256 levels).
void normal_lengths(const NormalLengthsArgs& args, const std::vector<int>* levels,
                    cudaStream_t stream);

/// Fills row_order, row_words, row_needs, which are set, and row_c. One launch, which may start
/// beside the kernel in front of it: lengths must have been there before that one started.
void sort_rows(const RowLengthArgs& args, cudaStream_t stream);

/// Fills cycles, and row_c where rows are not sorted. One launch.
void stage_row_lengths(const RowLengthArgs& args, cudaStream_t stream);

}  // namespace scmp::cuda
