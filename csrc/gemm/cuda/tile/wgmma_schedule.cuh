// What a block of the wgmma b1 kernel works on: its pieces of work in their order, and the ring of
// stages in shared memory.
#pragma once

#include "gemm/cuda/ptx/mbarrier.cuh"
#include "gemm/cuda/tile/expand_words.cuh"

namespace scmp::cuda {

/// What one launch does: a slab of tiles, over parts of the K axis.
struct Schedule {
  int64_t first_tile, tiles, parts;
  bool expanded;  // the workspace holds the slab's bits already
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

/// What the instances differ in. Kept: sums of earlier chunks in shared memory. Sorted: rows have
/// lengths of their own and come in the order of those, so that blocks of rows need only prefixes
/// of the cycles.
enum class Rows { plain, kept, sorted };

template <int kWords, Rows kKind>
constexpr int kPrefixesOf = kKind == Rows::sorted ? WordOrder<kWords>::kPrefixes : 1;

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
      : Item(p, schedule, i % row_blocks(p), i / row_blocks(p) % schedule.parts,
             i / row_blocks(p) / schedule.parts) {}
  __device__ Item(const GemmProblem& p, const Schedule& schedule, int64_t row_block, int64_t part,
                  int64_t tile_in_slab)
      : k(p, part, schedule.parts, p.a_layout.stages / p.chunks) {
    const int64_t per_batch = (p.m + kTileColumns - 1) / kTileColumns;
    in_slab = tile_in_slab;
    const int64_t tile = schedule.first_tile + in_slab;
    batch = tile / per_batch;
    first_row = row_block * kRows;
    first_column = tile % per_batch * kTileColumns;
  }
  /// The i-th where blocks of rows differ in cost: dear ones first, and every other round of the
  /// grid in reverse, so that the sums of a block's items are alike.
  __device__ static Item sorted(const GemmProblem& p, const Schedule& schedule, int64_t i,
                                int64_t items) {
    const int64_t grid = gridDim.x, round = i / grid;
    if (round % 2 == 1) {
      const int64_t last = min((round + 1) * grid, items) - 1;
      i = last - (i - round * grid);
    }
    const int64_t tile = i % schedule.tiles, rest = i / schedule.tiles;
    return Item(p, schedule, rest / schedule.parts, rest % schedule.parts, tile);
  }
  __host__ __device__ static int64_t row_blocks(const GemmProblem& p) {
    return (p.n + kRows - 1) / kRows;
  }
};

/// Prefixes of the cycles that the item's rows need in a chunk.
template <int kWords>
__device__ __forceinline__ int prefixes_of(const GemmProblem& p, const Item& item, int64_t chunk) {
  const int64_t block = item.batch * Item::row_blocks(p) + item.first_row / kRows;
  constexpr int kEach = WordOrder<kWords>::kPrefixWords;
  return (p.row_words[block * p.chunks + chunk] + kEach - 1) / kEach;
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
