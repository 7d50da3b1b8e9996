// The rank kernels: any stream length up to 4096, any grid, 64-bit sums.
#pragma once

#include <cstdint>
#include <memory>

#include "common/buffer.h"
#include "common/parallel.h"
#include "cpu/isa.h"
#include "gemm/problem.h"
#include "gemm/rank_tables.h"

namespace scmp {

constexpr int kRankRows = 64, kRankColumns = 64;

struct RankPlan {
  const GemmProblem* problem;
  const RankTables* tables;
  const int16_t* a_cycles;  // (batches * n, d) sign * cycles
  Buffer<int16_t> b_codes;  // (batches, column tiles, d, 64) codes, zero-padded
  int64_t column_tiles, row_tiles;
};

namespace scalar {
void rank_tiles(const RankPlan& plan, int64_t first_task, int64_t last_task);
}
namespace avx2 {
void rank_tiles(const RankPlan& plan, int64_t first_task, int64_t last_task);
}
namespace avx512 {
void rank_tiles(const RankPlan& plan, int64_t first_task, int64_t last_task);
}

void rank_gemm(const GemmProblem& problem, std::shared_ptr<const RankTables> tables, Isa isa,
               const ParallelFor& parallel);

}  // namespace scmp
