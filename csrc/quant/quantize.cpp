#include "quant/quantize.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace scmp {
namespace {

// Extremes of a group: bipolar keeps amax in `high`.
struct Range {
  float low = 0.0f, high = 0.0f;
  bool empty = true, finite = true;

  void merge(const Range& other, bool unipolar) {
    finite = finite && other.finite;
    if (other.empty) return;
    low = empty ? other.low : std::min(low, other.low);
    high = empty ? other.high : std::max(high, other.high);
    empty = false;
    if (!unipolar) low = 0.0f;
  }
};

float float_from(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

Range range_of(const RowKernels& kernels, const float* x, int64_t count, bool unipolar) {
  Range range;
  if (count == 0) return range;
  range.empty = false;
  const uint32_t bits = kernels.absmax_bits(x, count);
  range.finite = bits < kNonFiniteBits;
  if (unipolar) {
    kernels.minmax(x, count, &range.low, &range.high);
  } else {
    range.high = float_from(bits);
  }
  return range;
}

Affine affine_of(const QuantScheme& scheme, const Range& range) {
  return range.finite ? make_affine(scheme, range.low, range.high) : nonfinite_affine();
}

// The end of the rows that share a range with `row`, which is the first of them.
int64_t group_end(const Source& source, const Grouping& grouping, int64_t row) {
  switch (grouping.kind) {
    case Grouping::Kind::tensor:
      return source.total_rows();
    case Grouping::Kind::batch:
      return row + source.rows;
    default: {
      const int64_t batch_end = (row / source.rows + 1) * source.rows;
      return grouping.rows_per_group < batch_end - row ? row + grouping.rows_per_group : batch_end;
    }
  }
}

// Elements a thread should have at least, so that small calls stay on one.
constexpr int64_t kGrainElements = 1 << 15;

int64_t row_grain(const Source& source) {
  return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, source.dim));
}

Buffer<float> row_buffer(const Source& source) { return Buffer<float>(source.dim + 1); }

}  // namespace

int64_t chunk_count(int64_t dim, int64_t chunk) {
  return chunk > 0 && dim > 0 ? (dim - 1) / chunk + 1 : 1;
}

bool one_row_groups(const Source& source, const Grouping& grouping) {
  return grouping.kind == Grouping::Kind::row_groups &&
         (grouping.rows_per_group == 1 || source.rows == 1);
}

RowAffines find_affines(const Source& source, const QuantScheme& scheme, const Grouping& grouping,
                        const ParallelFor& parallel) {
  const int64_t rows = source.total_rows();
  const RowKernels& kernels = row_kernels(current_isa());
  RowAffines result;
  result.chunks = chunk_count(source.dim, grouping.chunk);
  result.affine = Buffer<Affine>(rows * result.chunks);
  const int64_t width = grouping.chunk > 0 ? grouping.chunk : source.dim;
  const bool single = one_row_groups(source, grouping);
  Buffer<Range> ranges(single ? 0 : rows * result.chunks);
  parallel(rows, row_grain(source), [&](int64_t begin, int64_t end) {
    Buffer<float> buffer = row_buffer(source);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = read_row(source, row, buffer.data());
      for (int64_t chunk = 0; chunk < result.chunks; ++chunk) {
        const int64_t first = chunk * width;
        const Range range =
            range_of(kernels, x + first, std::min(width, source.dim - first), scheme.unipolar);
        const int64_t slot = row * result.chunks + chunk;
        if (single) {
          new (&result.affine[slot]) Affine(affine_of(scheme, range));
        } else {
          new (&ranges[slot]) Range(range);
        }
      }
    }
  });
  if (single) return result;
  for (int64_t first = 0; first < rows;) {
    const int64_t last = group_end(source, grouping, first);
    for (int64_t chunk = 0; chunk < result.chunks; ++chunk) {
      Range range;
      for (int64_t row = first; row < last; ++row) {
        range.merge(ranges[row * result.chunks + chunk], scheme.unipolar);
      }
      const Affine affine = affine_of(scheme, range);
      for (int64_t row = first; row < last; ++row) {
        new (&result.affine[row * result.chunks + chunk]) Affine(affine);
      }
    }
    first = last;
  }
  return result;
}

void quantize_levels(const RowKernels& kernels, const QuantScheme& scheme, const Affine& affine,
                     const float* x, int64_t count, float* q) {
  if (std::isnan(affine.scale)) {
    std::fill(q, q + count, 0.0f);
  } else if (scheme.unipolar) {
    auto* levels =
        scheme.rounding == Rounding::tensor ? kernels.levels_fma : kernels.levels_divide_zero;
    levels(x, count, affine.factor, affine.zero_point, scheme.qmax, q);
  } else {
    auto* levels =
        scheme.rounding == Rounding::divide ? kernels.levels_divide : kernels.levels_multiply;
    levels(x, count, affine.factor, scheme.qmax, q);
  }
}

QuantizedOperand quantize_operand(const Source& source, const QuantScheme& scheme,
                                  const Grouping& grouping, int levels,
                                  const ParallelFor& parallel) {
  const int64_t rows = source.total_rows(), dim = source.dim;
  const RowKernels& kernels = row_kernels(current_isa());
  const BoundaryMap boundary(scheme.qmax, levels);
  QuantizedOperand result;
  result.codes = Buffer<int16_t>(rows * dim);
  if (scheme.unipolar) result.level_sum = Buffer<float>(rows);
  const bool fused = one_row_groups(source, grouping) && grouping.chunk == 0;
  if (fused) {
    result.affines.affine = Buffer<Affine>(rows);
  } else {
    result.affines = find_affines(source, scheme, grouping, parallel);
  }
  const int64_t width = grouping.chunk > 0 ? grouping.chunk : std::max<int64_t>(dim, 1);
  parallel(rows, row_grain(source), [&](int64_t begin, int64_t end) {
    Buffer<float> buffer = row_buffer(source), q = row_buffer(source);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = read_row(source, row, buffer.data());
      if (fused) {
        const Range range = range_of(kernels, x, dim, scheme.unipolar);
        new (&result.affines.affine[row]) Affine(affine_of(scheme, range));
      }
      for (int64_t chunk = 0; chunk < result.affines.chunks; ++chunk) {
        const int64_t first = chunk * width;
        quantize_levels(kernels, scheme, result.affines.at(row, chunk), x + first,
                        std::min(width, dim - first), q.data() + first);
      }
      kernels.encode(q.data(), dim, boundary, result.codes.data() + row * dim);
      if (scheme.unipolar) result.level_sum[row] = static_cast<float>(kernels.sum(q.data(), dim));
    }
  });
  return result;
}

}  // namespace scmp
