#include <cooperative_groups.h>

#include <algorithm>

#include "gemm/cuda/ptx/mbarrier.cuh"
#include "gemm/cuda/ptx/wgmma.cuh"
#include "gemm/cuda/tile/expand.cuh"
#include "gemm/cuda/wgmma_b1.h"

namespace scmp::cuda {
namespace {

constexpr int kConsumers = 4;  // warpgroups that multiply, 64 rows x 128 columns each
constexpr int kRows = 64 * kConsumers;
constexpr int kExpandThreads = 128 * kConsumers;
constexpr int kThreads = kExpandThreads + 128;  // and one that fetches
// Registers per thread after the launch's 96 are shared out anew: more for those that multiply.
// Once per launch: values that live across a second exchange would be lost.
constexpr int kConsumerRegisters = 112, kProducerRegisters = 24;
constexpr int kExpandBlocks = 1056;  // of the kernel that only expands
constexpr int64_t kLeastStages = 4;  // of a part, when the K axis is split
constexpr int64_t kMostTileBytes = int64_t{506} << 20;
constexpr uint32_t kPieceBytes = kTileColumns * 16;  // 16 bytes of every column

template <int kWords, bool kKept>
struct Block {
  static constexpr int kA = kRows * Pattern<kWords>::kPositions * 2;
  static constexpr int kStage = BStage<kWords>::kBytes + kA;
  static constexpr int kSums = kKept ? kRows * kTileColumns * 4 : 0;  // of earlier chunks
  static constexpr int kMost = 227 << 10;
  static constexpr int kStages =
      (kMost - kSums - 1024) / kStage < 4 ? (kMost - kSums - 1024) / kStage : 4;
  static constexpr int kShared = kStages * kStage + kSums + 16 * kStages;
  static_assert(kStages >= 2);
};

// What one launch does: a slab of tiles, over parts of the K axis.
struct Schedule {
  int64_t first_tile, tiles, parts;
  bool expanded;  // the workspace holds the slab's bits already
};

// One piece of work: a tile of outputs over a part of the K axis.
struct Item {
  int64_t batch, first_row, first_column, in_slab;
  KRange k;

  __device__ Item(const GemmProblem& p, const Schedule& schedule, int64_t i)
      : k(p, i / row_blocks(p) % schedule.parts, schedule.parts, p.a_layout.stages / p.chunks) {
    const int64_t per_batch = (p.m + kTileColumns - 1) / kTileColumns;
    in_slab = i / row_blocks(p) / schedule.parts;
    const int64_t tile = schedule.first_tile + in_slab;
    batch = tile / per_batch;
    first_row = i % row_blocks(p) * kRows;
    first_column = tile % per_batch * kTileColumns;
  }
  __host__ __device__ static int64_t row_blocks(const GemmProblem& p) {
    return (p.n + kRows - 1) / kRows;
  }
};

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

template <int kWords, bool kSigned, bool kKept>
struct Consumer {
  using P = Pattern<kWords>;
  using B = Block<kWords, kKept>;
  using StageRing = Ring<B::kStage, B::kStages>;
  const GemmProblem& p;
  const uint8_t* shared;
  StageRing& ring;
  Fragments<1> acc;

  __device__ int (&sums())[64] { return reinterpret_cast<int(&)[64]>(acc.sum); }

  // a's words of a pair of k256 steps: for each step, rows g and g + 8 of pieces 0 and 1.
  __device__ void fill(const int16_t* a, int pair, uint32_t (&fragments)[2][4]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t words[4];
      a_words<kWords, kSigned>(a + 8 * r * P::kPositions, pair, 0, threadIdx.x % 4, words);
      fragments[0][r] = words[0];
      fragments[0][2 + r] = words[1];
      fragments[1][r] = words[2];
      fragments[1][2 + r] = words[3];
    }
  }

  __device__ void correct(const int16_t* a, uint32_t terms) {
#pragma unroll
    for (int block = 0; block < P::kTermBytes / 32; ++block) {
      uint32_t fragment[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // rows g, g + 8; pieces 0, 1
        fragment[i] = a_terms<kWords>(a + 8 * (i % 2) * P::kPositions,
                                      8 * block + 2 * (threadIdx.x % 4) + i / 2, p.tables.length);
      }
      wgmma_fence();
      wgmma_s8(sums(), fragment,
               wgmma_descriptor(terms + block * 2 * kPieceBytes, kPieceBytes, 128));
      wgmma_commit();
      wgmma_wait<0>();  // the next block needs the registers
    }
  }

  // One stage. Its products are over at the end: the other warpgroups' go on meanwhile.
  __device__ void multiply() {
    ring.wait_full();
    const uint32_t stage = ring.stage();
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    const auto* a =
        reinterpret_cast<const int16_t*>(shared + ring.slot * B::kStage + BStage<kWords>::kBytes) +
        row * P::kPositions;
    uint32_t fragments[2][2][4];
    fill(a, 0, fragments[0]);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      const uint64_t b = wgmma_descriptor(stage + pair * 4 * kPieceBytes, kPieceBytes, 128);
      wgmma_fence();
      wgmma_b1_and_popc(sums(), fragments[pair % 2][0], b);
      wgmma_b1_and_popc(sums(), fragments[pair % 2][1], b + (2 * kPieceBytes >> 4));
      wgmma_commit();
      if (pair + 1 < kPairs) {
        wgmma_wait<1>();
        fill(a, pair + 1, fragments[(pair + 1) % 2]);
      }
    }
    if (kSigned) correct(a, stage + BStage<kWords>::kBits);
    wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) ring.release(ring.slot);
    ring.advance();
  }

  __device__ void run(const Item& item) {
    const int64_t warp_row = item.first_row + threadIdx.x / 32 * 16;
    KRange k = item.k;
    int64_t left = k.per_write;
    acc.clear();
    pin(sums());
    for (int64_t stage = k.first; stage < k.last; ++stage) {
      multiply();
      if (--left > 0) continue;
      pin(sums());
      const TileAt at{item.batch, warp_row, item.first_column};
      if constexpr (kKept) {
        auto* kept = const_cast<uint8_t*>(shared) + B::kStages * B::kStage;
        keep_tile<1>(p, at, k.chunk++, acc,
                     {reinterpret_cast<float2*>(kept) + threadIdx.x, kExpandThreads});
      } else {
        write_tile(p, at, k.chunk++, k.slot++, acc);
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
template <int kWords, bool kKept>
__device__ void produce(const GemmProblem& p, const Item& item, const uint8_t* workspace,
                        Ring<Block<kWords, kKept>::kStage, Block<kWords, kKept>::kStages>& ring) {
  using P = Pattern<kWords>;
  constexpr int kB = BStage<kWords>::kBytes;
  const StageLayout& l = p.a_layout;
  const uint8_t* b = workspace + item.in_slab * l.stages * kB;
  const int64_t rows = min(int64_t{kRows}, l.rows_padded - item.first_row);
  const auto a_bytes = static_cast<uint32_t>(rows * P::kPositions * 2);
  for (int64_t stage = item.k.first; stage < item.k.last; ++stage) {
    const int16_t* a =
        p.a_cycles +
        ((item.batch * l.stages + stage) * l.rows_padded + item.first_row) * P::kPositions;
    ring.wait_empty();
    mbarrier_expect(ring.full + 8 * ring.slot, kB + a_bytes);
    bulk_copy(ring.stage(), b + stage * kB, kB, ring.full + 8 * ring.slot);
    bulk_copy(ring.stage() + kB, a, a_bytes, ring.full + 8 * ring.slot);
    ring.advance();
  }
}

template <int kWords, bool kSigned, bool kKept>
__global__ void __launch_bounds__(kThreads, 1)
    gemm(const __grid_constant__ GemmProblem p, uint8_t* workspace, Schedule schedule) {
  using B = Block<kWords, kKept>;
  extern __shared__ __align__(1024) uint8_t shared[];
  Ring<B::kStage, B::kStages> ring;
  ring.base = shared_address(shared);
  ring.full = ring.base + B::kStages * B::kStage + B::kSums;
  ring.empty = ring.full + 8 * B::kStages;
  if (threadIdx.x == 0) {
    for (int i = 0; i < B::kStages; ++i) {
      mbarrier_init(ring.full + 8 * i, 1);
      mbarrier_init(ring.empty + 8 * i, kExpandThreads / 32);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const bool consumes = warpgroup() < kConsumers;
  if (!schedule.expanded) {
    const int64_t stages = p.a_layout.stages;
    // The tables come along into the shared memory that stages will use, where they fit.
    const uint32_t* table = p.tables.b_bits;
    const int64_t bytes = p.tables.lanes * (p.tables.levels + 1) * kWords * 4;
    if (bytes <= B::kStages * B::kStage) {
      const auto* from = reinterpret_cast<const uint2*>(p.tables.b_bits);
#pragma unroll 8
      for (int i = threadIdx.x; i < bytes / 8; i += kThreads) {
        reinterpret_cast<uint2*>(shared)[i] = __ldg(from + i);
      }
      table = reinterpret_cast<const uint32_t*>(shared);
      __syncthreads();
    }
    if (consumes) {
      expand_share<kWords, kSigned, kExpandThreads, BOrder::pieces>(
          p, table, static_cast<uint32_t>(schedule.first_tile),
          static_cast<uint32_t>(schedule.tiles * stages), static_cast<uint32_t>(stages), workspace);
    }
    async_proxy_fence();
    cooperative_groups::this_grid().sync();
    async_proxy_fence();
  }
  const int64_t items = schedule.tiles * schedule.parts * Item::row_blocks(p);
  if (consumes) {
    raise_registers<kConsumerRegisters>();
    Consumer<kWords, kSigned, kKept> consumer{p, shared, ring};
    for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
      const Item item(p, schedule, i);
      if (item.first_row + 64 * warpgroup() < p.n) {
        consumer.run(item);
      } else {
        consumer.idle(item);
      }
    }
  } else {
    lower_registers<kProducerRegisters>();
    if (threadIdx.x == kExpandThreads) {
      for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
        produce<kWords, kKept>(p, Item(p, schedule, i), workspace, ring);
      }
    }
  }
}

template <int kWords, bool kSigned>
__global__ void __launch_bounds__(256)
    expand(const __grid_constant__ GemmProblem p, uint8_t* workspace) {
  const auto tiles = static_cast<uint32_t>(p.batches * ((p.m + kTileColumns - 1) / kTileColumns));
  const auto stages = static_cast<uint32_t>(p.a_layout.stages);
  expand_share<kWords, kSigned, 256, BOrder::pieces>(p, p.tables.b_bits, 0, tiles * stages, stages,
                                                     workspace);
}

template <int kWords, bool kSigned, bool kKept>
void launch(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
            const DeviceLimits& device, cudaStream_t stream) {
  const auto kernel = gemm<kWords, kSigned, kKept>;
  constexpr int kShared = Block<kWords, kKept>::kShared;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
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

}  // namespace

std::string wgmma_b1_refuses(const GemmProblem& p, const DeviceLimits& device) {
  if (device.major != 9) return "it needs compute capability 9.0";
  if (p.tables.words > 8) return "its streams are at most 256 cycles long";
  if (p.tables.b_bits == nullptr) return "the bit tables of this config do not fit in memory";
  if (column_tiles(p) * p.a_layout.stages >= (int64_t{1} << 31)) return "it has too many tiles";
  if (wgmma_b1_workspace(p, 1) > kMostTileBytes) return "b's bits of one tile exceed 506 MiB";
  if (p.chunk * p.tables.length >= (int64_t{1} << 31)) return "sums need more than 32 bits";
  return "";
}

int64_t wgmma_b1_workspace(const GemmProblem& p, int64_t tiles) {
  return with_words(p.tables.words, [&](auto words) {
    return tiles * p.a_layout.stages * BStage<decltype(words)::value>::kBytes;
  });
}

int64_t wgmma_b1_parts(const GemmProblem& p, int64_t tiles, const DeviceLimits& device) {
  const int64_t wanted = device.multiprocessors / (tiles * Item::row_blocks(p));
  const int64_t most = p.chunks > 1 ? p.chunks : p.a_layout.stages / kLeastStages;
  return std::max<int64_t>(1, std::min(wanted, most));
}

void wgmma_b1_gemm(const GemmProblem& p, void* workspace, int64_t tiles, bool expanded,
                   const DeviceLimits& device, cudaStream_t stream) {
  auto* bits = static_cast<uint8_t*>(workspace);
  int64_t parts = 1;
  if (p.partial) parts = p.chunks > 1 ? wgmma_b1_parts(p, tiles, device) : p.slots;
  for (int64_t first = 0; first < column_tiles(p); first += tiles) {
    const Schedule schedule{first, std::min(tiles, column_tiles(p) - first), parts, expanded};
    with_words(p.tables.words, [&](auto words) {
      constexpr int kWords = decltype(words)::value;
      if (p.unipolar) return launch<kWords, false, false>(p, bits, schedule, device, stream);
      // Stages of short streams are too large beside the sums of chunks: those wait in the output.
      if constexpr (kWords > 2) {
        if (p.dequantizer.kind == Epilogue::chunk && !p.partial &&
            p.chunk * p.tables.length < kSmallSum) {
          return launch<kWords, true, true>(p, bits, schedule, device, stream);
        }
      }
      launch<kWords, true, false>(p, bits, schedule, device, stream);
    });
  }
}

void wgmma_b1_expand(const GemmProblem& p, void* workspace, cudaStream_t stream) {
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(column_tiles(p) * p.a_layout.stages, kExpandBlocks));
  auto* bits = static_cast<uint8_t*>(workspace);
  with_words(p.tables.words, [&](auto words) {
    constexpr int kWords = decltype(words)::value;
    if (p.unipolar) {
      expand<kWords, false><<<blocks, 256, 0, stream>>>(p, bits);
    } else {
      expand<kWords, true><<<blocks, 256, 0, stream>>>(p, bits);
    }
  });
}

}  // namespace scmp::cuda
