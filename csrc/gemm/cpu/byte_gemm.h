// The table kernels: exact sums by register lookups, one instruction set per build of
// byte_tile.cpp.
#pragma once

#include <cstdint>
#include <memory>

#include "cpu/isa.h"
#include "gemm/cpu/pack.h"

namespace scmp {

/// Rows of a that one task handles: their sums stay in the second-level cache.
constexpr int kTileRows = 64;

/// Everything the tile kernels read; tasks are (batch, tile of b, block of rows).
struct BytePlan {
  const GemmProblem* problem;
  const ByteTables* tables;
  std::vector<BlockRange> blocks;
  PackedA a;
  std::vector<PackedTile> tiles;
  int64_t tiles_per_batch, row_blocks, rows_per_task;
};

/// One instruction set's functions.
struct ByteKernels {
  EncodeFn encode;
  void (*tiles)(const BytePlan& plan, int64_t first_task, int64_t last_task);
};

namespace scalar {
extern const ByteKernels kByteKernels;
}
namespace avx2 {
extern const ByteKernels kByteKernels;
}
namespace avx512 {
extern const ByteKernels kByteKernels;
}

void byte_gemm(const GemmProblem& problem, std::shared_ptr<const ByteTables> tables, Isa isa,
               const ParallelFor& parallel);

}  // namespace scmp
