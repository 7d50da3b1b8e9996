#include "gemm/cpu/byte_gemm.h"

#include <algorithm>

#include "cpu/tuning.h"

namespace scmp {
namespace {

ByteTileFn tile_function(Isa isa) {
#if defined(SCMP_X86)
  if (isa == Isa::avx512) return avx512::byte_tiles;
  if (isa == Isa::avx2) return avx2::byte_tiles;
#endif
  return scalar::byte_tiles;
}

constexpr int64_t kGrainProducts = int64_t{1} << 18;  // below this a second thread costs more

}  // namespace

void byte_gemm(const GemmProblem& p, std::shared_ptr<const ByteTables> tables, Isa isa,
               const ParallelFor& parallel) {
  BytePlan plan;
  plan.problem = &p;
  plan.tables = tables.get();
  plan.blocks = make_blocks(p);
  plan.a = pack_a(p, plan.blocks, *tables, parallel);
  plan.tiles = pack_b(p, plan.blocks, tables->layout(), parallel);
  plan.tiles_per_batch = (p.m + kTileColumns - 1) / kTileColumns;
  plan.rows_per_task = std::min<int64_t>(det_tuning() ? kTileRows / 2 : kTileRows, p.n);
  plan.row_blocks = (p.n + plan.rows_per_task - 1) / plan.rows_per_task;
  const int64_t tasks = static_cast<int64_t>(plan.tiles.size()) * plan.row_blocks;
  const int64_t products =
      plan.rows_per_task * std::min<int64_t>(kTileColumns, p.m) * std::max<int64_t>(1, p.d);
  parallel(tasks, std::max<int64_t>(1, kGrainProducts / products),
           [&](int64_t begin, int64_t end) { tile_function(isa)(plan, begin, end); });
}

}  // namespace scmp
