// What a block of the wgmma b1 kernel works on: its pieces of work in their order, and the ring of
// stages in shared memory.
#pragma once

#include "gemm/cuda/ptx/mbarrier.cuh"
#include "gemm/cuda/tile/expand.cuh"

namespace scmp::cuda {

/// What one launch does: a slab of tiles, over parts of the K axis.
struct Schedule {
  int64_t first_tile, tiles, parts;
  bool expanded;          // the workspace holds the slab's bits already
  int rows = kWgmmaRows;  // of a that a block takes together, a multiple of 64
  uint32_t ones = ~0u;    // see LaneCycles
};

namespace {

constexpr int kConsumers = 4;  // warpgroups that multiply, 64 rows x 128 columns each
constexpr int kRows = 64 * kConsumers;
static_assert(kRows == kWgmmaRows);
constexpr int kExpandThreads = 128 * kConsumers;
constexpr int kThreads = kExpandThreads + 128;  // and one that fetches
// Registers per thread after the launch's 96 are shared out anew: more for those that multiply.
// Once per launch: values that live across a second exchange would be lost.
constexpr int kConsumerRegisters = 112, kProducerRegisters = 24;
constexpr int64_t kFewExpansions = 3;                // of stages by a block
constexpr uint32_t kPieceBytes = kTileColumns * 16;  // 16 bytes of every column

/// What the instances differ in. Kept: sums of earlier chunks in shared memory.
enum class Rows { plain, kept };

template <int kWords, Rows kKind>
struct Block {
  static constexpr int kA = kRows * Pattern<kWords>::kPositions * 2;
  static constexpr int kStage = BStage<kWords>::kBytes + kA;
  static constexpr int kSums =
      kKind == Rows::kept ? kRows * kTileColumns * 4 : 0;  // of earlier chunks
  static constexpr int kMost = 227 << 10;
  static constexpr int kStages =
      (kMost - kSums - 1024) / kStage < 4 ? (kMost - kSums - 1024) / kStage : 4;
  static constexpr int kShared = kStages * kStage + kSums + 16 * kStages;
  static_assert(kStages >= 2);
};

// One piece of work: a tile of outputs over a part of the K axis.
struct Item {
  int64_t batch, first_row, first_column, in_slab;
  KRange k;

  // Blocks of rows of one tile come together, as they read the same bits of b.
  __device__ Item(const GemmProblem& p, const Schedule& schedule, int64_t i)
      : Item(p, schedule, i % row_blocks(p, schedule), i / row_blocks(p, schedule) % schedule.parts,
             i / row_blocks(p, schedule) / schedule.parts, p.a_layout.stages / p.chunks) {}
  // `per_chunk` are the units of the K axis.
  __device__ Item(const GemmProblem& p, const Schedule& schedule, int64_t row_block, int64_t part,
                  int64_t tile_in_slab, int64_t per_chunk)
      : k(p, part, schedule.parts, per_chunk) {
    const int64_t per_batch = (p.m + kTileColumns - 1) / kTileColumns;
    in_slab = tile_in_slab;
    const int64_t tile = schedule.first_tile + in_slab;
    batch = tile / per_batch;
    first_row = row_block * schedule.rows;
    first_column = tile % per_batch * kTileColumns;
  }
  __host__ __device__ static int64_t row_blocks(const GemmProblem& p, const Schedule& schedule) {
    return (p.n + schedule.rows - 1) / schedule.rows;
  }
};

__host__ __device__ inline int64_t item_count(const GemmProblem& p, const Schedule& schedule) {
  return schedule.tiles * schedule.parts * Item::row_blocks(p, schedule);
}

// The calling warpgroup; the compiler knows that a warp agrees on it.
__device__ __forceinline__ int warpgroup() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
}

// The ring of stages in shared memory, and where in it a role is.
template <int kStage, int kStages>
struct Ring {
  uint32_t base, full, empty;  // addresses: stages, then barriers
  int slot = 0;
  uint32_t parity = 0;

  __device__ uint32_t stage() const { return base + slot * kStage; }
  __device__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
  __device__ void wait_full() const { mbarrier_wait(full + 8 * slot, parity); }
  __device__ void wait_empty() const { mbarrier_wait(empty + 8 * slot, parity ^ 1); }
  __device__ void release(int which) const { mbarrier_arrive(empty + 8 * which); }
};

}  // namespace
}  // namespace scmp::cuda
