// Streams of different lengths in one product: classes by the words that they take, and where the
// cycles of operand a lie then.
#pragma once

#include <cstdint>

#include "common/float_ops.h"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {

constexpr int kWgmmaRows = 256;     // of a that a block of wgmma_b1 takes together, at most
constexpr int kUnitPositions = 32;  // whole stages of every class

constexpr int kLengthClasses = 6;
constexpr int kMostClassWords = 8;

/// Words of a class's patterns.
SCMP_DEVICE_CALLABLE constexpr int class_words(int length_class) {
  return length_class < 4 ? length_class + 1 : 2 * length_class - 2;
}
/// The class of patterns of 1 to 8 words.
SCMP_DEVICE_CALLABLE constexpr int class_of_words(int words) {
  return words <= 4 ? words - 1 : (words + 3) / 2;
}
static_assert(class_of_words(5) == 4 && class_of_words(6) == 4 && class_of_words(7) == 5 &&
              class_of_words(8) == 5 && class_words(4) == 6 && class_words(5) == 8);

/// Positions of a stage of the class.
SCMP_DEVICE_CALLABLE constexpr int class_positions(int length_class) {
  return length_class < 2 ? 32 : length_class < 4 ? 16 : 8;
}
/// Words from one pattern of LengthTables::ranked to the next.
SCMP_DEVICE_CALLABLE constexpr int class_stride(int length_class) {
  return class_words(length_class) == 3 ? 4 : length_class < 4 ? length_class + 1 : 8;
}

/// How often a sequence is below a code in its first 32, 64 ... cycles: (lanes, levels + 1) entries
/// of kNarrowMarks bytes, or where patterns have more words of kWideMarks 16-bit numbers.
constexpr int kNarrowMarks = 4, kWideMarks = 8;
SCMP_DEVICE_CALLABLE constexpr bool wide_counts(int words) { return words > kNarrowMarks; }
struct PrefixCounts {
  const uint8_t* entries = nullptr;
  bool wide = false;

  SCMP_DEVICE_CALLABLE int entry_bytes() const { return wide ? 2 * kWideMarks : kNarrowMarks; }
};

/// The sequences as device tables, for problems whose a has lengths of its own and is expanded.
struct LengthTables {
  const uint32_t* cycles = nullptr;  // CycleTables::bits
  int cycle_words = 0;
  PrefixCounts a_counts, b_counts;
  // Of each class (lanes, 32 words + 1, class_stride): bit r of pattern k says whether the cycle of
  // b's r-th smallest value, of the class's cycles, is below k. Null: the tables are too large.
  const uint32_t* ranked[kLengthClasses] = {};
};

/// Where cycles of sorted rows lie: (batches, chunks) of blocks of kWgmmaRows rows, each in stages
/// of its class, (rows, positions) each.
struct SortedPlaces {
  int64_t rows_padded = 0, chunks = 1, units = 0;  // units: of kUnitPositions, of a chunk

  SCMP_DEVICE_CALLABLE int64_t size(int64_t batches) const {
    return batches * chunks * units * kUnitPositions * rows_padded;
  }
  /// Rows of the block that row `first` begins.
  SCMP_DEVICE_CALLABLE int64_t block_rows(int64_t first) const {
    return rows_padded - first < kWgmmaRows ? rows_padded - first : kWgmmaRows;
  }
  /// Where, from the unit's beginning, a block's row has a position, as staged_position orders it:
  /// the unit's stages of the class, (rows, positions) each.
  SCMP_DEVICE_CALLABLE static int64_t in_unit(int64_t rows, int row, int position, int positions) {
    return (position / positions * rows + row) * positions +
           staged_position(row, position % positions, positions);
  }
  /// Where the unit of a block begins.
  SCMP_DEVICE_CALLABLE int64_t at(int64_t batch, int64_t chunk, int64_t first, int64_t unit) const {
    return ((batch * chunks + chunk) * rows_padded + first) * units * kUnitPositions +
           unit * kUnitPositions * block_rows(first);
  }
};

}  // namespace scmp::cuda
