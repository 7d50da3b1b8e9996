#include "gemm/cpu/byte_gemm.h"

#include <algorithm>

#include "cpu/tuning.h"

namespace scmp {
namespace {

const ByteKernels& byte_kernels(Isa isa) {
#if defined(SCMP_X86)
  if (isa == Isa::avx512) return avx512::kByteKernels;
  if (isa == Isa::avx2) return avx2::kByteKernels;
#endif
  return scalar::kByteKernels;
}

constexpr int64_t kGrainProducts = int64_t{1} << 18;  // below this a second thread costs more

}  // namespace

void byte_gemm(const GemmProblem& p, std::shared_ptr<const ByteTables> tables, Isa isa,
               const ParallelFor& parallel) {
  BytePlan plan;
  plan.problem = &p;
  plan.tables = tables.get();
  plan.blocks = make_blocks(p);
  const ByteKernels& kernels = byte_kernels(isa);
  plan.a = pack_a(p, plan.blocks, *tables, kernels.encode, parallel);
  plan.tiles = pack_b(p, plan.blocks, tables->layout(), parallel);
  plan.tiles_per_batch = (p.m + kTileColumns - 1) / kTileColumns;
  plan.rows_per_task = std::min<int64_t>(det_tuning() ? kTileRows / 2 : kTileRows, p.n);
  plan.row_blocks = (p.n + plan.rows_per_task - 1) / plan.rows_per_task;
  const int64_t tasks = static_cast<int64_t>(plan.tiles.size()) * plan.row_blocks;
  const int64_t products =
      plan.rows_per_task * std::min<int64_t>(kTileColumns, p.m) * std::max<int64_t>(1, p.d);
  dynamic_for(tasks, std::max<int64_t>(1, kGrainProducts / products), parallel,
              [&](int64_t begin, int64_t end) { kernels.tiles(plan, begin, end); });
}

}  // namespace scmp
