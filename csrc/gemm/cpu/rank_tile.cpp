// Compiled once per instruction set (SCMP_ISA).
#include <cstring>

#include "gemm/cpu/rank_gemm.h"

namespace scmp {
namespace SCMP_ISA {
namespace {

// sums[c] += sign * count(k, |codes[c]|) for one row of a at one position, k = |signed_k|.
inline void add_position(const uint64_t* words, int32_t signed_k, const int16_t* codes,
                         int64_t* sums) {
  const int32_t k = signed_k < 0 ? -signed_k : signed_k;
  const uint64_t below = (uint64_t{1} << (k % kRankBits)) - 1;
  for (int c = 0; c < kRankColumns; ++c) {
    const int32_t code = codes[c], code_sign = code >> 31, negative = code_sign ^ (signed_k >> 31);
    const uint64_t word = words[(code ^ code_sign) - code_sign];
    const int64_t count =
        static_cast<int64_t>(word >> kRankBits) + __builtin_popcountll(word & below);
    sums[c] += (count ^ negative) - negative;
  }
}

void run_task(const RankPlan& plan, int64_t task, int64_t* sums, uint64_t* scratch) {
  const GemmProblem& p = *plan.problem;
  const int64_t row_tile = task % plan.row_tiles, tile = task / plan.row_tiles;
  const int64_t batch = tile / plan.column_tiles, column_tile = tile % plan.column_tiles;
  const int64_t first_row = row_tile * kRankRows, first_column = column_tile * kRankColumns;
  const int64_t rows = p.n - first_row < kRankRows ? p.n - first_row : kRankRows;
  const int64_t columns = p.m - first_column < kRankColumns ? p.m - first_column : kRankColumns;
  const int64_t row_words = p.streams->levels + 1;
  const int16_t* b_codes = plan.b_codes.data() + tile * p.d * kRankColumns;
  for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
    memset(sums, 0, rows * kRankColumns * sizeof(int64_t));
    const int64_t start = chunk * p.chunk, end = start + p.chunk < p.d ? start + p.chunk : p.d;
    for (int64_t d = start; d < end; ++d) {
      const int64_t lane = p.streams->lane(d - start);
      if (scratch) plan.tables->build_lane(*p.streams, lane, scratch);
      const uint64_t* words = scratch ? scratch : plan.tables->lane(lane);
      for (int64_t r = 0; r < rows; ++r) {
        const int32_t signed_k = plan.a_cycles[(batch * p.n + first_row + r) * p.d + d];
        if (signed_k == 0) continue;
        const int32_t k = signed_k < 0 ? -signed_k : signed_k;
        add_position(words + k / kRankBits * row_words, signed_k, b_codes + d * kRankColumns,
                     sums + r * kRankColumns);
      }
    }
    for (int64_t r = 0; r < rows; ++r) {
      dequantize_row(p.dequantizer, sums + r * kRankColumns, batch, first_row + r, chunk,
                     first_column, columns,
                     p.out + (batch * p.n + first_row + r) * p.m + first_column);
    }
  }
}

}  // namespace

void rank_tiles(const RankPlan& plan, int64_t first_task, int64_t last_task) {
  Buffer<int64_t> sums(kRankRows * kRankColumns);
  Buffer<uint64_t> scratch(plan.tables->has_lanes() ? 0 : plan.tables->lane_words());
  for (int64_t task = first_task; task < last_task; ++task) {
    run_task(plan, task, sums.data(), scratch.data());
  }
}

}  // namespace SCMP_ISA
}  // namespace scmp
