// The wgmma b1 kernel: a persistent block per multiprocessor, one warp that fetches, four
// warpgroups that multiply. It expands b's bits first, where nobody has.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>

#include "common/copy_table.cuh"
#include "common/shared_memory.cuh"
#include "gemm/cuda/ptx/wgmma.cuh"
#include "gemm/cuda/tile/wgmma_schedule.cuh"
#include "gemm/cuda/wgmma_b1.h"

namespace scmp::cuda {

/// Two launches where rows are sorted by length (p.sorted).
void wgmma_b1_sorted(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                     const DeviceLimits& device, cudaStream_t stream);
/// The same and transposed.
void wgmma_b1_sorted_transposed(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                                const DeviceLimits& device, cudaStream_t stream);

/// One launch of a transposed problem.
void wgmma_b1_transposed(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                         const DeviceLimits& device, cudaStream_t stream);

/// Where bits do not go through memory (wgmma_b1_needs_workspace): one launch for all tiles.
void wgmma_b1_in_place(const GemmProblem& p, int64_t parts, const DeviceLimits& device,
                       cudaStream_t stream);

namespace {

/// A warpgroup's products: 64 rows of a by a tile of b, stage by stage from the ring.
template <typename B, bool kSigned>
struct Products {
  using StageRing = Ring<B::kStage, B::kStages>;
  const uint8_t* shared;
  StageRing& ring;
  uint32_t ones;  // see LaneCycles
  Fragments<1> acc;

  __device__ int (&sums())[64] { return reinterpret_cast<int(&)[64]>(acc.sum); }
  __device__ __forceinline__ void clear() {
    acc.clear();
    pin(sums());
  }

  // One stage of patterns of kWords words, in streams of `length` cycles. Its products are over at
  // the end: the other warpgroups' go on meanwhile.
  template <int kWords>
  __device__ __forceinline__ void multiply(int length) {
    using P = Pattern<kWords>;
    ring.wait_full();
    const uint32_t stage = ring.stage();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const LaneCycles<kWords> cycles(shared + ring.slot * B::kStage + BStage<kWords>::kBytes, row,
                                    t);
    // Two steps' fragments each, rows g and g + 8 of pieces 0 and 1: one is filled while the
    // other's products run. The terms follow the last pair.
    uint32_t fragments[2][2][4];
    fill<kWords>(cycles, 0, t, ones, fragments[0]);
#pragma unroll
    for (int pair = 0; pair < P::kPairs; ++pair) {
      const uint64_t b = wgmma_descriptor(stage + pair * 4 * kPieceBytes, kPieceBytes, 128);
      wgmma_fence();
      wgmma_b1_and_popc(sums(), fragments[pair % 2][0], b);
      wgmma_b1_and_popc(sums(), fragments[pair % 2][1], b + (2 * kPieceBytes >> 4));
      wgmma_commit();
      if (pair + 1 == P::kPairs && !kSigned) break;
      wgmma_wait<1>();
      if (pair + 1 < P::kPairs) {
        fill<kWords>(cycles, pair + 1, t, ones, fragments[(pair + 1) % 2]);
      } else {
        correct<kWords>(cycles, t, length, stage + BStage<kWords>::kBits, fragments[P::kPairs % 2]);
      }
    }
    wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) ring.release(ring.slot);
    ring.advance();
  }

  // Lets `count` stages pass.
  __device__ void skip(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      ring.wait_full();
      __syncwarp();  // a lane that still waits must not see the barrier two phases on
      if (threadIdx.x % 32 == 0) ring.release(ring.slot);
      ring.advance();
    }
  }

 private:
  // a's words of a pair of k256 steps.
  template <int kWords>
  __device__ __forceinline__ static void fill(const LaneCycles<kWords>& cycles, int pair, int t,
                                              uint32_t ones, uint32_t (&fragments)[2][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t words[4];
      cycles.template words<kSigned>(pair, 8 * r, t, ones, words);
      fragments[0][r] = words[0];
      fragments[0][2 + r] = words[1];
      fragments[1][r] = words[2];
      fragments[1][2 + r] = words[3];
    }
  }

  template <int kWords>
  __device__ __forceinline__ void correct(const LaneCycles<kWords>& cycles, int t, int length,
                                          uint32_t terms, uint32_t (&fragments)[2][4]) {
    constexpr int kBlocks = Pattern<kWords>::kTermBytes / 32;
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        fragments[i / 2][i % 2 * 2 + r] = cycles.terms(i, 8 * r, t, length);
    }
    wgmma_fence();
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      wgmma_s8(sums(), fragments[block],
               wgmma_descriptor(terms + block * 2 * kPieceBytes, kPieceBytes, 128));
    }
    wgmma_commit();
  }
};

template <int kWords, bool kSigned, Rows kKind, bool kTransposed, typename B = Block<kWords, kKind>>
struct Consumer {
  const GemmProblem& p;
  int rows;  // of an item
  Products<B, kSigned> products;

  __device__ void take(const Item& item) {
    const int mine = 64 * warpgroup();
    if (mine < rows && item.first_row + mine < p.n) {
      run(item);
    } else {
      products.skip(item.k.last - item.k.first);
    }
  }

  __device__ void run(const Item& item) {
    const int64_t warp_row = item.first_row + threadIdx.x / 32 * 16;
    const auto stages = static_cast<int>(item.k.per_write);  // of a write
    auto writes = static_cast<int>((item.k.last - item.k.first) / item.k.per_write);
    int64_t chunk = item.k.chunk, slot = item.k.slot;
    auto& acc = products.acc;
    for (; writes > 0; --writes) {
      products.clear();
      for (int i = stages; i > 0; --i) products.template multiply<kWords>(p.tables.length);
      pin(products.sums());
      const TileAt at{item.batch, warp_row, item.first_column};
      if constexpr (kKind == Rows::kept) {
        auto* kept = const_cast<uint8_t*>(products.shared) + B::kStages * B::kStage;
        keep_tile<kTransposed>(p, at, chunk++, acc,
                               {reinterpret_cast<float2*>(kept) + threadIdx.x, kExpandThreads});
      } else {
        write_tile<!kSigned, kTransposed>(p, at, chunk++, slot++, acc);
      }
    }
  }
};

// Fetches a stage of b and of a's rows to the ring's next place.
template <typename StageRing>
__device__ __forceinline__ void fetch_stage(StageRing& ring, const uint8_t* b, uint32_t b_bytes,
                                            const int16_t* a, uint32_t a_bytes) {
  const uint32_t full = ring.full + 8 * ring.slot, to = ring.stage();
  ring.wait_empty();
  mbarrier_expect(full, b_bytes + a_bytes);
  bulk_copy(to, b, b_bytes, full);
  bulk_copy(to + b_bytes, a, a_bytes, full);
  ring.advance();
}

// One thread fetches the stages of an item.
template <int kWords, Rows kKind>
__device__ void produce(const GemmProblem& p, const Item& item, int rows, const uint8_t* workspace,
                        Ring<Block<kWords, kKind>::kStage, Block<kWords, kKind>::kStages>& ring) {
  using P = Pattern<kWords>;
  constexpr int kB = BStage<kWords>::kBytes;
  const StageLayout& l = p.a_layout;
  const uint8_t* b = workspace + item.in_slab * l.stages * kB;
  const int64_t fetched = min(int64_t{rows}, l.rows_padded - item.first_row);
  const auto a_bytes = static_cast<uint32_t>(fetched * P::kPositions * 2);
  for (int64_t stage = item.k.first; stage < item.k.last; ++stage) {
    const int16_t* a =
        p.a_cycles +
        ((item.batch * l.stages + stage) * l.rows_padded + item.first_row) * P::kPositions;
    fetch_stage(ring, b + stage * kB, kB, a, a_bytes);
  }
}

__host__ __device__ int64_t table_bytes(const DeviceTables& t) {
  return t.lanes * (t.levels + 1) * t.words * 4;
}
// The ring at the start of shared memory, its barriers ready for so many arrivals.
template <typename Block>
__device__ auto make_ring(uint8_t* shared, int producers, int consumers) {
  Ring<Block::kStage, Block::kStages> ring;
  ring.base = shared_address(shared);
  ring.full = ring.base + Block::kStages * Block::kStage + Block::kSums;
  ring.empty = ring.full + 8 * Block::kStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Block::kStages; ++i) {
      mbarrier_init(ring.full + 8 * i, producers);
      mbarrier_init(ring.empty + 8 * i, consumers);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  return ring;
}

// Until all blocks' bits are in memory.
__device__ __forceinline__ void wait_for_bits() {
  async_proxy_fence();
  cooperative_groups::this_grid().sync();
  async_proxy_fence();
}

template <int kWords, bool kSigned, Rows kKind, bool kTransposed>
__global__ void __launch_bounds__(kThreads, 1)
    gemm(const __grid_constant__ GemmProblem p, uint8_t* workspace, Schedule schedule) {
  using B = Block<kWords, kKind>;
  extern __shared__ __align__(1024) uint8_t shared[];
  auto ring = make_ring<B>(shared, 1, kExpandThreads / 32);
  const bool consumes = warpgroup() < kConsumers;
  if (!schedule.expanded) {
    const int64_t stages = p.a_layout.stages;
    // The tables come along into the shared memory that stages will use, where they fit and a block
    // expands enough stages for it.
    const int64_t bytes = table_bytes(p.tables);
    const bool often = schedule.tiles * stages > kFewExpansions * gridDim.x;
    const auto expand = [&](const uint32_t* table, auto split) {
      expand_share<
          Expander<kWords, kSigned, kExpandThreads, BOrder::pieces, decltype(split)::value>,
          BStage<kWords>::kBytes>(p, table, static_cast<uint32_t>(schedule.first_tile),
                                  static_cast<uint32_t>(schedule.tiles * stages),
                                  static_cast<uint32_t>(stages), workspace);
    };
    if (often && bytes <= B::kStages * B::kStage) {
      copy_table(p.tables.b_bits, bytes, shared);
      __syncthreads();
      if (consumes) expand(reinterpret_cast<const uint32_t*>(shared), std::false_type{});
    } else if (consumes && often) {
      expand(p.tables.b_bits, std::false_type{});
    } else if (consumes) {
      expand(p.tables.b_bits, std::true_type{});
    }
    wait_for_bits();
  }
  const int64_t items = item_count(p, schedule);
  if (consumes) {
    raise_registers<kConsumerRegisters>();
    Consumer<kWords, kSigned, kKind, kTransposed> consumer{
        p, schedule.rows, {shared, ring, schedule.ones}};
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
      consumer.take(Item(p, schedule, i));
    }
  } else {
    lower_registers<kProducerRegisters>();
    if (threadIdx.x == kExpandThreads) {
      for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
        produce<kWords, kKind>(p, Item(p, schedule, i), schedule.rows, workspace, ring);
      }
    }
  }
}

// Launches kKernel, whose grid synchronises where bits are not there yet: `expansions` pieces of
// work come before the items.
template <auto kKernel>
void launch_gemm(const GemmProblem& p, uint8_t* bits, const Schedule& schedule, int shared_bytes,
                 int64_t expansions, const DeviceLimits& device, cudaStream_t stream) {
  allow_shared_memory<kKernel>(shared_bytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(
      std::min<int64_t>(device.multiprocessors, std::max(item_count(p, schedule), expansions))));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  config.attrs = &cooperative;
  config.numAttrs = schedule.expanded ? 0 : 1;
  cudaLaunchKernelEx(&config, kKernel, p, bits, schedule);
}

template <int kWords, bool kSigned, Rows kKind, bool kTransposed = false>
void launch(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
            const DeviceLimits& device, cudaStream_t stream) {
  launch_gemm<gemm<kWords, kSigned, kKind, kTransposed>>(
      p, bits, schedule, Block<kWords, kKind>::kShared,
      schedule.expanded ? 0 : schedule.tiles * p.a_layout.stages, device, stream);
}

// Calls visit with the words per position as a constant.
template <typename Visit>
auto with_words(int words, const Visit& visit) {
  switch (words) {
    case 2:
      return visit(std::integral_constant<int, 2>{});
    case 4:
      return visit(std::integral_constant<int, 4>{});
    default:
      return visit(std::integral_constant<int, 8>{});
  }
}

// One launch of bipolar rows in the order in which they come. The sums of chunks are kept in shared
// memory where stages leave room: those of short streams are too large, and sums wait in the
// output.
template <bool kTransposed>
void launch_bipolar(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                    const DeviceLimits& device, cudaStream_t stream) {
  const bool keeps =
      p.dequantizer.kind == Epilogue::chunk && !p.partial && p.chunk * p.tables.length < kSmallSum;
  with_words(p.tables.words, [&](auto words) {
    constexpr int kWords = decltype(words)::value;
    if constexpr (kWords > 2) {
      if (keeps) {
        return launch<kWords, true, Rows::kept, kTransposed>(p, bits, schedule, device, stream);
      }
    }
    launch<kWords, true, Rows::plain, kTransposed>(p, bits, schedule, device, stream);
  });
}

}  // namespace
}  // namespace scmp::cuda
