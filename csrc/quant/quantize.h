// Operands to codes: ranges per group, then levels, then codes on the stream grid.
#pragma once

#include <cstdint>

#include "common/buffer.h"
#include "common/parallel.h"
#include "quant/affine.h"
#include "quant/rows.h"
#include "quant/scheme.h"
#include "quant/source.h"

namespace scmp {

/// Which elements share a range.
struct Grouping {
  enum class Kind { row_groups, batch, tensor } kind = Kind::row_groups;
  int64_t rows_per_group = 1;  // row_groups only; a group never crosses a batch
  int64_t chunk = 0;           // > 0: one range per chunk of this many columns
};

/// Ranges per row: how many chunks a row of `dim` columns has, and whether every row is a group.
int64_t chunk_count(int64_t dim, int64_t chunk);
bool one_row_groups(const Source& source, const Grouping& grouping);

/// The affine map of every row (and chunk), shape (batches * rows, chunks).
struct RowAffines {
  int64_t chunks = 1;
  Buffer<Affine> affine;
  const Affine& at(int64_t row, int64_t chunk) const { return affine[row * chunks + chunk]; }
};

/// Codes of one operand, ready for any gemm kernel.
struct QuantizedOperand {
  Buffer<int16_t> codes;    // (batches * rows, dim), sign * boundary
  RowAffines affines;       // per row and chunk
  Buffer<float> level_sum;  // (batches * rows,) unipolar only: exact sum of levels, rounded once
};

QuantizedOperand quantize_operand(const Source& source, const QuantScheme& scheme,
                                  const Grouping& grouping, int levels,
                                  const ParallelFor& parallel);

/// Ranges alone: for the public quantizers.
RowAffines find_affines(const Source& source, const QuantScheme& scheme, const Grouping& grouping,
                        const ParallelFor& parallel);

/// The levels of one stretch of a row under its map; all zero when the group is not finite.
void quantize_levels(const RowKernels& kernels, const QuantScheme& scheme, const Affine& affine,
                     const float* x, int64_t count, float* q);

}  // namespace scmp
