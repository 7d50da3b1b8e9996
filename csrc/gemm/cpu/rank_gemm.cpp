#include "gemm/cpu/rank_gemm.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace scmp {
namespace {

using RankTileFn = void (*)(const RankPlan&, int64_t, int64_t);

RankTileFn tile_function(Isa isa) {
#if defined(SCMP_X86)
  if (isa == Isa::avx512) return avx512::rank_tiles;
  if (isa == Isa::avx2) return avx2::rank_tiles;
#endif
  return scalar::rank_tiles;
}

constexpr int64_t kGrainProducts = int64_t{1} << 15;

Buffer<int16_t> encode_a(const GemmProblem& p, const ParallelFor& parallel) {
  const int64_t rows = p.batches * p.n;
  const int levels = p.streams->levels;
  Buffer<int16_t> cycles(rows * p.d);
  parallel(p.d, std::max<int64_t>(1, kGrainProducts / std::max<int64_t>(1, rows)),
           [&](int64_t begin, int64_t end) {
             std::vector<uint16_t> counts(levels + 1);
             for (int64_t d = begin; d < end; ++d) {
               prefix_counts(p.streams->a_lane(p.streams->lane(d % p.chunk)), p.streams->length,
                             levels, counts.data());
               for (int64_t row = 0; row < rows; ++row) {
                 const int code = p.a_codes[row * p.d + d];
                 const int k = counts[std::abs(code)];
                 cycles[row * p.d + d] = static_cast<int16_t>(code < 0 ? -k : k);
               }
             }
           });
  return cycles;
}

Buffer<int16_t> tile_b(const GemmProblem& p, int64_t column_tiles, const ParallelFor& parallel) {
  const int64_t tiles = p.batches * column_tiles;
  Buffer<int16_t> codes(tiles * p.d * kRankColumns);
  parallel(tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t batch = tile / column_tiles, first = tile % column_tiles * kRankColumns;
      for (int64_t c = 0; c < kRankColumns; ++c) {
        const bool real = first + c < p.m;
        const int16_t* from = p.b_codes + (batch * p.m + first + c) * p.d;
        int16_t* to = codes.data() + tile * p.d * kRankColumns + c;
        for (int64_t d = 0; d < p.d; ++d) to[d * kRankColumns] = real ? from[d] : int16_t{0};
      }
    }
  });
  return codes;
}

}  // namespace

void rank_gemm(const GemmProblem& p, std::shared_ptr<const RankTables> tables, Isa isa,
               const ParallelFor& parallel) {
  RankPlan plan;
  plan.problem = &p;
  plan.tables = tables.get();
  plan.column_tiles = (p.m + kRankColumns - 1) / kRankColumns;
  plan.row_tiles = (p.n + kRankRows - 1) / kRankRows;
  const Buffer<int16_t> encoded = p.a_cycles ? Buffer<int16_t>() : encode_a(p, parallel);
  plan.a_cycles = p.a_cycles ? p.a_cycles : encoded.data();
  plan.b_codes = tile_b(p, plan.column_tiles, parallel);
  const int64_t products = std::min<int64_t>(kRankRows, p.n) * kRankColumns * p.d;
  dynamic_for(p.batches * plan.column_tiles * plan.row_tiles,
              std::max<int64_t>(1, kGrainProducts / std::max<int64_t>(1, products)), parallel,
              [&](int64_t begin, int64_t end) { tile_function(isa)(plan, begin, end); });
}

}  // namespace scmp
