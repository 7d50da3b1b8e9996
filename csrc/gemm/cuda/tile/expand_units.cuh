// Codes to bit patterns where rows have stream lengths of their own: units of 32 positions, whose
// stages are those of the length classes that need them.
#pragma once

#include "gemm/cuda/tile/expand.cuh"

namespace scmp::cuda {

/// Calls visit with the class's words as a constant; kMost: those of the longest streams.
template <int kMost, typename Visit>
__device__ __forceinline__ void with_class(int length_class, const Visit& visit) {
  if (length_class == 0) {
    visit(std::integral_constant<int, 1>{});
  } else if (length_class == 1) {
    visit(std::integral_constant<int, 2>{});
  }
  if constexpr (kMost > 2) {
    if (length_class == 2) {
      visit(std::integral_constant<int, 3>{});
    } else if (length_class == 3) {
      visit(std::integral_constant<int, 4>{});
    }
  }
  if constexpr (kMost > 4) {
    if (length_class == 4) {
      visit(std::integral_constant<int, 6>{});
    } else if (length_class == 5) {
      visit(std::integral_constant<int, 8>{});
    }
  }
}

/// Stages of a unit, and their bytes.
template <int kWords>
struct Unit {
  static constexpr int kClass = class_of_words(kWords);
  static constexpr int kStages = kUnitPositions / Pattern<kWords>::kPositions;
  static constexpr int kBytes = kStages * BStage<kWords>::kBytes;
  static_assert(class_words(kClass) == kWords);
  static_assert(class_positions(kClass) == Pattern<kWords>::kPositions);
};

/// Where the stages of a class begin within a unit's bytes, kTransposed: of the only one.
template <int kWords, bool kTransposed>
__host__ __device__ constexpr int unit_offset() {
  if (kTransposed || kWords == 1) return 0;
  if (kWords == 2) return Unit<1>::kBytes;
  if (kWords == 3) return unit_offset<2, false>() + Unit<2>::kBytes;
  if (kWords == 4) return unit_offset<3, false>() + Unit<3>::kBytes;
  if (kWords == 6) return unit_offset<4, false>() + Unit<4>::kBytes;
  return unit_offset<6, false>() + Unit<6>::kBytes;
}
/// Bytes of a unit, with room for the longest class, or for all of them.
template <int kMost, bool kTransposed>
__host__ __device__ constexpr int unit_bytes() {
  return unit_offset<kMost, kTransposed>() + Unit<kMost>::kBytes;
}

__host__ __device__ inline int64_t units_per_chunk(const GemmProblem& p) {
  return (p.chunk + kUnitPositions - 1) / kUnitPositions;
}

/// Stages of a write, of so many units of a chunk from `first` on: those behind the chunk's end are
/// left out.
template <int kWords>
__device__ __forceinline__ int stages_of_units(const GemmProblem& p, int64_t chunk, int64_t first,
                                               int64_t units) {
  const int64_t positions =
      min(units * kUnitPositions, chunk_columns(p, chunk) - first * kUnitPositions);
  return static_cast<int>((positions + Pattern<kWords>::kPositions - 1) /
                          Pattern<kWords>::kPositions);
}

/// The length class of the block of sorted rows (or tile of sorted columns) that `first` begins.
__device__ __forceinline__ int class_at(const GemmProblem& p, int64_t batch, int64_t first,
                                        int64_t chunk) {
  const int64_t rows = p.transposed ? p.m : p.n;
  const int64_t each = p.transposed ? kTileColumns : kWgmmaRows;
  const int64_t block = batch * ((rows + each - 1) / each) + first / each;
  return class_of_words(p.sorted.words[block * p.chunks + chunk]);
}

/// Expands units of tiles: a warpgroup one of them at a time, a thread a column. Transposed: the
/// columns are rows of a, whose codes first become cycles of their own streams.
template <int kMost, bool kTransposed>
struct UnitExpander {
  const GemmProblem& p;
  const LengthTables& tables;  // here or in shared memory
  ExpandAt at;
  ColumnCodes<kUnitPositions> codes;
  int64_t row;  // of a, where transposed

  __device__ __forceinline__ UnitExpander(const GemmProblem& problem, const LengthTables& t)
      : p(problem), tables(t) {}

  /// Unit `i` of the tiles from `first_tile` on.
  __device__ __forceinline__ void read(int64_t first_tile, int64_t i) {
    const int64_t units = units_per_chunk(p), rest = i / units, unit = i - rest * units;
    const int64_t tiles = (p.m + kTileColumns - 1) / kTileColumns;
    const int64_t tile = first_tile + rest / p.chunks;
    at.batch = tile / tiles;
    at.first_column = (tile - at.batch * tiles) * kTileColumns;
    at.chunk = rest % p.chunks;
    at.first = unit * kUnitPositions;
    at.positions =
        static_cast<int>(min(chunk_columns(p, at.chunk) - at.first, int64_t{kUnitPositions}));
    at.columns = static_cast<int>(min(p.m - at.first_column, int64_t{kTileColumns}));
    const int column = column_of_thread();
    const bool exists = column < at.columns;
    row = at.first_column + (exists ? column : 0);
    if (kTransposed) row = p.sorted.order[at.batch * p.m + row];
    codes.read(p, b_codes_at(p, at.batch, at.chunk, row) + at.first, exists ? at.positions : 0);
  }

  __device__ __forceinline__ void write(uint8_t* out) {
    if constexpr (kTransposed) {
      to_cycles();
      with_class<kMost>(class_at(p, at.batch, at.first_column, at.chunk), [&](auto words) {
        constexpr int kWords = decltype(words)::value;
        constexpr int kClass = Unit<kWords>::kClass;
        const PatternTable table{tables.ranked[kClass], 32 * kWords + 1, class_stride(kClass)};
        CheckedCodes checked(32 * kWords, false);
        write_stages<kWords, true>(table, checked, out);
      });
    } else {
      const uint32_t needs = p.sorted.needs[at.batch];
      CheckedCodes checked(p);
      const PatternTable table{p.tables.b_bits, static_cast<uint32_t>(p.tables.levels + 1), kMost};
#pragma unroll
      for (int c = 0; c <= class_of_words(kMost); ++c) {
        if ((needs >> c & 1) == 0) continue;
        with_class<kMost>(c, [&](auto words) {
          constexpr int kWords = decltype(words)::value;
          write_stages<kWords, false>(table, checked, out + unit_offset<kWords, false>());
        });
      }
      if (!checked.good()) mark_damaged(p, at.batch, at.first_column + column_of_thread());
    }
  }

 private:
  template <int kWords, bool kOnesAreCodes>
  __device__ __forceinline__ void write_stages(const PatternTable& table, CheckedCodes& checked,
                                               uint8_t* out) {
    const TableRows rows(p.tables, table, at);
#pragma unroll
    for (int stage = 0; stage < Unit<kWords>::kStages; ++stage) {
      const int first = stage * Pattern<kWords>::kPositions;
      if (first >= at.positions) break;
      StageWriter<kWords, true, BOrder::pieces>::template write<kOnesAreCodes>(
          table, rows, first, codes.two, first, checked, min(p.tables.length, 32 * kWords),
          out + stage * BStage<kWords>::kBytes);
    }
  }

  // Codes to the cycles that they enable in the row's streams.
  __device__ __forceinline__ void to_cycles() {
    const SortedRows& s = p.sorted;
    const int64_t a_row = at.batch * p.m + row;
    const int given = s.lengths[s.length_per_chunk ? a_row * p.chunks + at.chunk : a_row];
    const int length = given < 0 || given > s.longest ? 0 : given;
    const int whole = length / 32, rest = length % 32;
    constexpr bool kWide = wide_counts(kMost);
    using Count = std::conditional_t<kWide, uint16_t, uint8_t>;
    constexpr int kMarks = kWide ? kWideMarks : kNarrowMarks;
    const auto* counts =
        reinterpret_cast<const Count*>(tables.a_counts.entries) + max(whole - 1, 0);
    const uint32_t exists = whole > 0 ? ~0u : 0u, partly = thermometer(rest, 0);
    const bool any_rest = __any_sync(~0u, rest > 0);
    const uint32_t* bits = tables.cycles + whole;
    const TableRows rows(p.tables, {nullptr, static_cast<uint32_t>(p.tables.levels + 1), 1}, at);
    CheckedCodes checked(p);
#pragma unroll
    for (int i = 0; i < kUnitPositions; i += 2) {
      int cycles[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const SignedCode code = checked.at(codes.two, i + j);
        const uint32_t entry = rows.of(i + j) + code.magnitude;
        int count = static_cast<int>(counts[entry * kMarks] & exists);
        if (any_rest && rest > 0) {
          count += __popc(__ldg(bits + entry * tables.cycle_words) & partly);
        }
        cycles[j] = (count ^ code.sign) - code.sign;
      }
      codes.two[i / 2] = (cycles[0] & 0xffff) | static_cast<uint32_t>(cycles[1]) << 16;
    }
  }
};

}  // namespace scmp::cuda
