// Addressing along the K axis.
#pragma once

#include <cstdint>

#include "gemm/cuda/problem.h"

namespace scmp::cuda {

/// Which lane (distinct pair of sequences) drives a position: entry of `lane_of`, or without one
/// the position modulo `lanes`, most often a power of two.
__device__ __forceinline__ int64_t lane_of_position(const int32_t* lane_of, int64_t lanes,
                                                    int64_t position) {
  if (lane_of) return lane_of[position];
  const auto p = static_cast<uint32_t>(position), n = static_cast<uint32_t>(lanes);
  return (n & (n - 1)) == 0 ? p & (n - 1) : p % n;
}

/// Signed cycles of a's row at a position of a chunk; of rows past the end whatever is there, or 0.
__device__ __forceinline__ int a_cycles_at(const GemmProblem& p, int64_t batch, int64_t chunk,
                                           int64_t row, int64_t position) {
  const StageLayout& l = p.a_layout;
  if (row >= l.rows_padded) return 0;
  const int shift = __ffs(l.positions) - 1;
  const int64_t stage = batch * l.stages + chunk * l.stages_per_chunk + (position >> shift);
  return p.a_cycles[((stage * l.rows_padded + row) << shift) +
                    staged_position(static_cast<int>(row),
                                    static_cast<int>(position) & (l.positions - 1), l.positions)];
}

/// Columns of a chunk.
__device__ __forceinline__ int64_t chunk_columns(const GemmProblem& p, int64_t chunk) {
  return min(p.chunk, p.d - chunk * p.chunk);
}

/// b's codes of one column (a row of b) from the start of a chunk.
__device__ __forceinline__ const int16_t* b_codes_at(const GemmProblem& p, int64_t batch,
                                                     int64_t chunk, int64_t column) {
  return p.b_codes + (batch * p.m + column) * p.d + chunk * p.chunk;
}

/// A stored code of b, or 0 and `bad` raised where no quantizer makes such a code: a damaged
/// prepared b must not reach past the tables. Without branches, so that reads stay together.
__device__ __forceinline__ int checked_code(const GemmProblem& p, int code, bool& bad) {
  const int least = p.unipolar ? 0 : -p.tables.levels;
  const bool good = code <= p.tables.levels && code >= least;
  bad = bad || !good;
  return good ? code : 0;
}

/// Makes the column's outputs NaN.
__device__ __forceinline__ void mark_damaged(const GemmProblem& p, int64_t batch, int64_t column) {
  if (p.damaged) p.damaged[batch * p.m + column] = 1;
}

/// A part of the K axis: parts of chunked problems are whole chunks.
struct KRange {
  int64_t first, last;  // units of the kernel (stages, positions ...), over all chunks
  int64_t per_write;    // units between two writes
  int64_t chunk, slot;  // of the first write

  /// Part `part` of `parts`, where a chunk has `per_chunk` units.
  __device__ KRange(const GemmProblem& p, int64_t part, int64_t parts, int64_t per_chunk) {
    slot = chunk = 0;
    if (p.chunks > 1) {
      chunk = slot = part * p.chunks / parts;
      first = chunk * per_chunk;
      last = (part + 1) * p.chunks / parts * per_chunk;
      per_write = per_chunk;
    } else {
      slot = part;
      first = part * per_chunk / parts;
      last = (part + 1) * per_chunk / parts;
      per_write = last - first;
    }
  }
};

}  // namespace scmp::cuda
