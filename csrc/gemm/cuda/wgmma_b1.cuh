// The wgmma b1 kernel: a persistent block per multiprocessor, one warp that fetches, four
// warpgroups that multiply. It expands b's bits first, where nobody has.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>

#include "common/shared_memory.cuh"
#include "gemm/cuda/ptx/wgmma.cuh"
#include "gemm/cuda/tile/wgmma_schedule.cuh"
#include "gemm/cuda/wgmma_b1.h"

namespace scmp::cuda {

/// One launch where rows are sorted by length (p.row_order).
void wgmma_b1_sorted(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                     const DeviceLimits& device, cudaStream_t stream);

/// One launch of a transposed problem.
void wgmma_b1_transposed(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                         const DeviceLimits& device, cudaStream_t stream);

/// Where bits do not go through memory (wgmma_b1_needs_workspace): one launch for all tiles.
void wgmma_b1_in_place(const GemmProblem& p, int64_t parts, const DeviceLimits& device,
                       cudaStream_t stream);

namespace {

template <int kWords, bool kSigned, Rows kKind, bool kTransposed, typename B = Block<kWords, kKind>>
struct Consumer {
  using P = Pattern<kWords>;
  using Order = WordOrder<kWords>;
  using StageRing = Ring<B::kStage, B::kStages>;
  const GemmProblem& p;
  const uint8_t* shared;
  StageRing& ring;
  Fragments<1> acc;

  __device__ int (&sums())[64] { return reinterpret_cast<int(&)[64]>(acc.sum); }

  // a's words of a pair of k256 steps: for each step, rows g and g + 8 of pieces 0 and 1.
  __device__ static void fill(const int16_t* a, int pair, uint32_t (&fragments)[2][4]) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t words[4];
      const int16_t* row = a + 8 * r * P::kPositions;
      if constexpr (kKind == Rows::sorted) {
        Thermometers two;  // what a group's pairs share: no registers are left to keep it in
        two.load(row + Order::position(Order::group(pair), t));
        two.words(Order::word(pair), words);
      } else {
        a_words<kWords, kSigned>(row, pair, 0, t, words);
      }
      fragments[0][r] = words[0];
      fragments[0][2 + r] = words[1];
      fragments[1][r] = words[2];
      fragments[1][2 + r] = words[3];
    }
  }

  __device__ void correct(const int16_t* a, uint32_t terms, int length) {
#pragma unroll
    for (int block = 0; block < P::kTermBytes / 32; ++block) {
      uint32_t fragment[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // rows g, g + 8; pieces 0, 1
        fragment[i] = a_terms<kWords>(a + 8 * (i % 2) * P::kPositions,
                                      8 * block + 2 * (threadIdx.x % 4) + i / 2, length);
      }
      wgmma_fence();
      wgmma_s8(sums(), fragment,
               wgmma_descriptor(terms + block * 2 * kPieceBytes, kPieceBytes, 128));
      wgmma_commit();
      wgmma_wait<0>();  // the next block needs the registers
    }
  }

  __device__ void take(const Item& item) {
    if (item.first_row + 64 * warpgroup() < p.n) {
      run(item);
    } else {
      idle(item);
    }
  }

  // One stage, of whose cycles the first kUsed words count. Its products are over at the end: the
  // other warpgroups' go on meanwhile.
  template <int kUsed>
  __device__ __forceinline__ void multiply_words() {
    constexpr int kGroupPairs = (kUsed + 1) / 2, kCount = Order::kGroups * kGroupPairs;
    const auto pair_at = [](int i) {
      return i / kGroupPairs * Order::kGroupPairs + i % kGroupPairs;
    };
    const uint32_t stage = ring.stage();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const auto* a =
        reinterpret_cast<const int16_t*>(shared + ring.slot * B::kStage + BStage<kWords>::kBytes) +
        row * P::kPositions;
    uint32_t fragments[2][2][4];
    fill(a, 0, fragments[0]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int pair = pair_at(i);
      const uint64_t b = wgmma_descriptor(stage + pair * 4 * kPieceBytes, kPieceBytes, 128);
      wgmma_fence();
      wgmma_b1_and_popc(sums(), fragments[i % 2][0], b);
      if (kKind != Rows::sorted || Order::word(pair) + 1 < kUsed) {
        wgmma_b1_and_popc(sums(), fragments[i % 2][1], b + (2 * kPieceBytes >> 4));
      }
      wgmma_commit();
      if (i + 1 < kCount) {
        wgmma_wait<1>();
        fill(a, pair_at(i + 1), fragments[(i + 1) % 2]);
      }
    }
    if (kSigned) {
      constexpr int kCycles = 32 * kUsed;
      correct(a, stage + BStage<kWords>::kBits,
              kKind == Rows::sorted ? min(p.tables.length, kCycles) : p.tables.length);
    }
    wgmma_wait<0>();
  }

  __device__ __forceinline__ void multiply(int prefixes) {
    ring.wait_full();
    constexpr int kEach = Order::kPrefixWords;
    if constexpr (kKind != Rows::sorted) {
      multiply_words<kWords>();
    } else if (prefixes <= 1) {
      multiply_words<kEach>();
    } else if (prefixes == 2) {
      multiply_words<2 * kEach>();
    } else if constexpr (Order::kPrefixes > 2) {
      if (prefixes == 3) {
        multiply_words<3 * kEach>();
      } else {
        multiply_words<4 * kEach>();
      }
    }
    if (threadIdx.x % 32 == 0) ring.release(ring.slot);
    ring.advance();
  }

  __device__ int prefixes(const Item& item, int64_t chunk) const {
    return kKind == Rows::sorted ? prefixes_of<kWords>(p, item, chunk) : 0;
  }

  __device__ void run(const Item& item) {
    const int64_t warp_row = item.first_row + threadIdx.x / 32 * 16;
    KRange k = item.k;
    int64_t left = k.per_write;
    int used = prefixes(item, k.chunk);
    acc.clear();
    pin(sums());
    for (int64_t stage = k.first; stage < k.last; ++stage) {
      multiply(used);
      if (--left > 0) continue;
      pin(sums());
      const TileAt at{item.batch, warp_row, item.first_column};
      if constexpr (kKind == Rows::kept) {
        auto* kept = const_cast<uint8_t*>(shared) + B::kStages * B::kStage;
        keep_tile<kTransposed>(p, at, k.chunk++, acc,
                               {reinterpret_cast<float2*>(kept) + threadIdx.x, kExpandThreads});
      } else if constexpr (kKind == Rows::sorted) {
        write_sorted_tile(p, at, k.chunk++, k.slot++, acc);
        if (stage + 1 < k.last) used = prefixes(item, k.chunk);
      } else {
        write_tile<!kSigned, kTransposed>(p, at, k.chunk++, k.slot++, acc);
      }
      left = k.per_write;
      acc.clear();
      pin(sums());
    }
  }

  // A warpgroup without rows lets the stages pass.
  __device__ void idle(const Item& item) {
    for (int64_t stage = item.k.first; stage < item.k.last; ++stage) {
      ring.wait_full();
      __syncwarp();  // a lane that still waits must not see the barrier two phases on
      if (threadIdx.x % 32 == 0) ring.release(ring.slot);
      ring.advance();
    }
  }
};

// One thread fetches the stages of an item.
template <int kWords, Rows kKind>
__device__ void produce(const GemmProblem& p, const Item& item, const uint8_t* workspace,
                        Ring<Block<kWords, kKind>::kStage, Block<kWords, kKind>::kStages>& ring) {
  using P = Pattern<kWords>;
  using Order = WordOrder<kWords>;
  using Stage = BStage<kWords, kPrefixesOf<kWords, kKind>>;
  constexpr int kB = BStage<kWords>::kBytes, kWordBytes = 2 * kPieceBytes;  // of a group
  const StageLayout& l = p.a_layout;
  const uint8_t* b = workspace + item.in_slab * l.stages * Stage::kBytes;
  const int64_t rows = min(int64_t{kRows}, l.rows_padded - item.first_row);
  const auto a_bytes = static_cast<uint32_t>(rows * P::kPositions * 2);
  int64_t chunk = item.k.chunk, left = p.chunks > 1 ? item.k.per_write : item.k.last;
  int used = kKind == Rows::sorted ? prefixes_of<kWords>(p, item, chunk) : 0;
  for (int64_t stage = item.k.first; stage < item.k.last; ++stage) {
    const int16_t* a =
        p.a_cycles +
        ((item.batch * l.stages + stage) * l.rows_padded + item.first_row) * P::kPositions;
    const uint8_t* from = b + stage * Stage::kBytes;
    const uint32_t full = ring.full + 8 * ring.slot, to = ring.stage();
    ring.wait_empty();
    if constexpr (kKind != Rows::sorted) {
      mbarrier_expect(full, kB + a_bytes);
      bulk_copy(to, from, kB, full);
    } else {
      const int bytes = used * Order::kPrefixWords * kWordBytes;
      mbarrier_expect(full, Order::kGroups * bytes + Stage::kTerms + a_bytes);
#pragma unroll
      for (int g = 0; g < Order::kGroups; ++g) {
        bulk_copy(to + g * kWords * kWordBytes, from + g * kWords * kWordBytes, bytes, full);
      }
      bulk_copy(to + Stage::kBits, from + Stage::kBits + (used - 1) * Stage::kTerms, Stage::kTerms,
                full);
    }
    bulk_copy(to + kB, a, a_bytes, full);
    ring.advance();
    if (kKind == Rows::sorted && --left == 0 && stage + 1 < item.k.last) {
      left = item.k.per_write;
      used = prefixes_of<kWords>(p, item, ++chunk);
    }
  }
}

__host__ __device__ int64_t table_bytes(const DeviceTables& t) {
  return t.lanes * (t.levels + 1) * t.words * 4;
}
// b's patterns to shared memory, by all threads of the block.
__device__ __forceinline__ void copy_table(const DeviceTables& t, int64_t bytes, uint8_t* shared) {
  const auto* from = reinterpret_cast<const uint2*>(t.b_bits);
#pragma unroll 8
  for (int i = threadIdx.x; i < bytes / 8; i += blockDim.x) {
    reinterpret_cast<uint2*>(shared)[i] = __ldg(from + i);
  }
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
      using Words = WordExpander<kWords, kExpandThreads>;
      using Plain =
          Expander<kWords, kSigned, kExpandThreads, BOrder::pieces, decltype(split)::value>;
      expand_share<std::conditional_t<kKind == Rows::sorted, Words, Plain>,
                   BStage<kWords, kPrefixesOf<kWords, kKind>>::kBytes>(
          p, table, static_cast<uint32_t>(schedule.first_tile),
          static_cast<uint32_t>(schedule.tiles * stages), static_cast<uint32_t>(stages), workspace);
    };
    if (often && bytes <= B::kStages * B::kStage) {
      copy_table(p.tables, bytes, shared);
      __syncthreads();
      if (consumes) expand(reinterpret_cast<const uint32_t*>(shared), std::false_type{});
    } else if (consumes && often) {
      expand(p.tables.b_bits, std::false_type{});
    } else if (consumes) {
      expand(p.tables.b_bits, std::true_type{});
    }
    async_proxy_fence();
    cooperative_groups::this_grid().sync();
    async_proxy_fence();
  }
  const int64_t items = schedule.tiles * schedule.parts * Item::row_blocks(p);
  const auto item_at = [&](int64_t i) {
    return kKind == Rows::sorted ? Item::sorted(p, schedule, i, items) : Item(p, schedule, i);
  };
  if (consumes) {
    raise_registers<kConsumerRegisters>();
    Consumer<kWords, kSigned, kKind, kTransposed> consumer{p, shared, ring};
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
      consumer.take(item_at(i));
    }
  } else {
    lower_registers<kProducerRegisters>();
    if (threadIdx.x == kExpandThreads) {
      for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
        produce<kWords, kKind>(p, item_at(i), workspace, ring);
      }
    }
  }
}

template <int kWords, bool kSigned, Rows kKind, bool kTransposed = false>
void launch(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
            const DeviceLimits& device, cudaStream_t stream) {
  const auto kernel = gemm<kWords, kSigned, kKind, kTransposed>;
  constexpr int kShared = Block<kWords, kKind>::kShared;
  allow_shared_memory<gemm<kWords, kSigned, kKind, kTransposed>>(kShared);
  const int64_t items = schedule.tiles * schedule.parts * Item::row_blocks(p);
  const int64_t expansions = schedule.expanded ? 0 : schedule.tiles * p.a_layout.stages;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(
      std::min<int64_t>(device.multiprocessors, std::max(items, expansions))));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kShared;
  config.stream = stream;
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  config.attrs = &cooperative;
  config.numAttrs = schedule.expanded ? 0 : 1;
  cudaLaunchKernelEx(&config, kernel, p, bits, schedule);
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
