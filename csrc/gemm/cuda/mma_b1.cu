#include <cooperative_groups.h>

#include <algorithm>

#include "gemm/cuda/mma/patterns.cuh"
#include "gemm/cuda/mma_b1.h"
#include "gemm/cuda/ptx/cp_async.cuh"
#include "gemm/cuda/ptx/mma.cuh"
#include "gemm/cuda/tile/expand.cuh"
#include "gemm/cuda/tile/fragments.cuh"

// From sm_100 on b1 products are emulated and slow to compile: other kernels run there.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 1000
#define SCMP_HAS_B1 1
#else
#define SCMP_HAS_B1 0
#endif

namespace scmp::cuda {
namespace {

constexpr int kRowFragments = kWarpRows / 16;
constexpr int kExpandThreads = 256, kExpandBlocks = 1056;
constexpr int64_t kLeastStages = 4;  // of a part, when the K axis is split
constexpr int64_t kMostTileBytes = int64_t{506} << 20;

// How a block works: 4 warps, two blocks per multiprocessor, chunk sums added up in the output; or
// 8 warps that keep them in shared memory.
enum class Shape { small, chunk_sums };

template <int kWords, Shape kShape>
struct Block {
  static constexpr int kWarps = kShape == Shape::small ? 4 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kA = kRows * Pattern<kWords>::kPositions * 2;
  static constexpr int kStage = BStage<kWords>::kBytes + kA;
  static constexpr int kSums = kShape == Shape::small ? 0 : kRows * kTileColumns * 4;
  static constexpr int kShared = 2 * kStage + kSums;
  static constexpr int kPerMultiprocessor = kShape == Shape::small ? 2 : 1;
};

template <int kWords, bool kSigned, Shape kShape>
struct Gemm {
  using P = Pattern<kWords>;
  using B = Block<kWords, kShape>;
  static constexpr int kThreads = B::kThreads;
  const GemmProblem& p;
  uint8_t* shared;
  const uint8_t* b_stages;  // of this block's tile
  int64_t batch, first_row, first_column;
  int warp_row, g, t;  // the warp's first row; fragment coordinates
  Fragments<kRowFragments> acc;

  __device__ uint8_t* buffer(int64_t stage) { return shared + stage % 2 * B::kStage; }

  __device__ void fetch(int64_t stage) {
    uint8_t* to = buffer(stage);
    const uint8_t* from = b_stages + stage * BStage<kWords>::kBytes;
    const uint64_t policy = evict_first_policy();
    constexpr int kCopied = kSigned ? BStage<kWords>::kBytes : BStage<kWords>::kBits;
    for (int i = threadIdx.x * 16; i < kCopied; i += kThreads * 16) {
      cp_async_16_once(to + i, from + i, policy);
    }
    const int64_t a_stage = batch * p.a_layout.stages + stage / P::kStagesPerPosition;
    const int16_t* a = p.a_cycles + (a_stage * p.a_layout.rows_padded + first_row) * P::kPositions;
    const int64_t valid = (p.a_layout.rows_padded - first_row) * P::kPositions * 2;
    for (int i = threadIdx.x * 16; i < B::kA; i += kThreads * 16) {
      cp_async_16(to + BStage<kWords>::kBytes + i,
                  i < valid ? reinterpret_cast<const uint8_t*>(a) + i
                            : reinterpret_cast<const uint8_t*>(p.a_cycles),
                  i < valid);
    }
    cp_async_commit();
  }

  // A row of this thread's fragments: warp_row + 16 mf + g + 8 r.
  __device__ const int16_t* a_row(const int16_t* a, int mf, int r) const {
    return a + (warp_row + 16 * mf + g + 8 * r) * P::kPositions;
  }

  // a's fragments of the two k256 steps of a pair.
  __device__ void a_fragments(const int16_t* a, int pair, int half_position,
                              uint32_t (&fragments)[2][kRowFragments][4]) const {
#pragma unroll
    for (int mf = 0; mf < kRowFragments; ++mf) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t words[4];
        a_words<kWords, kSigned>(a_row(a, mf, r), g, pair, half_position, t, words);
        fragments[0][mf][r] = words[0];
        fragments[0][mf][2 + r] = words[1];
        fragments[1][mf][r] = words[2];
        fragments[1][mf][2 + r] = words[3];
      }
    }
  }

  __device__ void multiply(int64_t stage) {
    const uint8_t* b = buffer(stage);
    const auto* a = reinterpret_cast<const int16_t*>(b + BStage<kWords>::kBytes);
    const int half_position = static_cast<int>(stage % P::kStagesPerPosition);
    // Two at a time: fragments of the second come while the first multiplies.
    constexpr int kTogether = kShape == Shape::chunk_sums ? 2 : 1;
#pragma unroll kTogether
    for (int pair = 0; pair < Pattern<kWords>::kPairs; ++pair) {
      uint32_t fragments[2][kRowFragments][4];
      a_fragments(a, pair, half_position, fragments);
      const auto* quads = reinterpret_cast<const uint4*>(b + pair * kTileColumns * 64);
      // Four column fragments at a time: products into the same sums are eight instructions apart.
#pragma unroll
      for (int first = 0; first < kColumnFragments; first += 4) {
        uint4 q[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) q[i] = quads[(8 * (first + i) + g) * 4 + t];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int mf = 0; mf < kRowFragments; ++mf) {
            mma_b1_and_popc(acc.sum[mf][first + i], fragments[0][mf], q[i].x, q[i].y);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int mf = 0; mf < kRowFragments; ++mf) {
            mma_b1_and_popc(acc.sum[mf][first + i], fragments[1][mf], q[i].z, q[i].w);
          }
        }
      }
    }
    if (kSigned && half_position == 0) correct(a, b + BStage<kWords>::kBits);
  }

  __device__ void correct(const int16_t* a, const uint8_t* terms) {
    const int length = p.tables.length;
#pragma unroll 1
    for (int block = 0; block < P::kTermBytes / 32; ++block) {
      uint32_t fragments[kRowFragments][4];
#pragma unroll
      for (int mf = 0; mf < kRowFragments; ++mf) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int16_t* row = a_row(a, mf, r);
          fragments[mf][r] = a_terms<kWords>(row, g, 8 * block + 2 * t, length);
          fragments[mf][2 + r] = a_terms<kWords>(row, g, 8 * block + 2 * t + 1, length);
        }
      }
#pragma unroll
      for (int nf = 0; nf < kColumnFragments; ++nf) {
        const uint2 q = *reinterpret_cast<const uint2*>(terms + (8 * nf + g) * P::kTermBytes +
                                                        32 * block + 8 * t);
#pragma unroll
        for (int mf = 0; mf < kRowFragments; ++mf) mma_s8(acc.sum[mf][nf], fragments[mf], q.x, q.y);
      }
    }
  }

  __device__ void write(int64_t chunk, int64_t slot) {
    const TileAt at{batch, first_row + warp_row, first_column};
    if constexpr (kShape == Shape::chunk_sums) {
      keep_tile<false, kRowFragments>(
          p, at, chunk, acc,
          {reinterpret_cast<float2*>(shared + 2 * B::kStage) + threadIdx.x, kThreads});
    } else {
      write_tile<false, false>(p, at, chunk, slot, acc);
    }
  }

  __device__ void run(KRange k) {
    int64_t left = k.per_write;
    __syncthreads();  // the buffers of an earlier tile
    fetch(k.first);
    acc.clear();
    for (int64_t stage = k.first; stage < k.last; ++stage) {
      cp_async_wait<0>();
      __syncthreads();
      if (stage + 1 < k.last) fetch(stage + 1);
      multiply(stage);
      if (--left == 0) {
        write(k.chunk++, k.slot++);
        acc.clear();
        left = k.per_write;
      }
    }
  }
};

// The grid expands `count` tiles from `first` on.
template <int kWords, bool kSigned, int kThreads>
__device__ void expand_tiles(const GemmProblem& p, int64_t first, int64_t count, int64_t stages,
                             uint8_t* workspace) {
  if constexpr (kWords <= 8) {
    expand_share<Expander<kWords, kSigned, kThreads, BOrder::lanes>, BStage<kWords>::kBytes>(
        p, p.tables.b_bits, static_cast<uint32_t>(first), static_cast<uint32_t>(count * stages),
        static_cast<uint32_t>(stages), workspace);
  } else {
    for (int64_t i = blockIdx.x; i < count * stages; i += gridDim.x) {
      expand_long_stage<kWords, kSigned, kThreads>(p, static_cast<uint32_t>(i % stages),
                                                   static_cast<uint32_t>(first + i / stages),
                                                   workspace + i * BStage<kWords>::kBytes);
    }
  }
}

// How the tiles are gone through.
struct Schedule {
  int64_t slab;   // tiles of 128 columns per slab
  int64_t parts;  // of the K axis
  bool expanded;  // the workspace holds all bits already
};

template <int kWords>
__device__ __host__ int64_t stages_of(const GemmProblem& p) {
  return p.a_layout.stages * Pattern<kWords>::kStagesPerPosition;
}

template <int kWords, bool kSigned, Shape kShape>
__global__ void __launch_bounds__(Block<kWords, kShape>::kThreads,
                                  Block<kWords, kShape>::kPerMultiprocessor)
    gemm(const __grid_constant__ GemmProblem p, uint8_t* workspace, Schedule schedule) {
#if SCMP_HAS_B1
  using B = Block<kWords, kShape>;
  extern __shared__ __align__(16) uint8_t shared[];
  const int64_t per_batch = (p.m + kTileColumns - 1) / kTileColumns, tiles = p.batches * per_batch;
  const int64_t row_blocks = (p.n + B::kRows - 1) / B::kRows, stages = stages_of<kWords>(p);
  const int64_t per_chunk = stages / p.chunks;
  for (int64_t first = 0; first < tiles; first += schedule.slab) {
    const int64_t count = min(schedule.slab, tiles - first);
    if (!schedule.expanded) {
      if (first > 0) cooperative_groups::this_grid().sync();  // the last slab is still read
      expand_tiles<kWords, kSigned, B::kThreads>(p, first, count, stages, workspace);
      cooperative_groups::this_grid().sync();
    }
    for (int64_t i = blockIdx.x; i < count * schedule.parts * row_blocks; i += gridDim.x) {
      const int64_t row_block = i % row_blocks, rest = i / row_blocks;
      const int64_t part = rest % schedule.parts, in_slab = rest / schedule.parts;
      const int64_t tile = first + in_slab;
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      Gemm<kWords, kSigned, kShape> task{p,
                                         shared,
                                         workspace + in_slab * stages * BStage<kWords>::kBytes,
                                         tile / per_batch,
                                         row_block * B::kRows,
                                         tile % per_batch * kTileColumns,
                                         warp * kWarpRows,
                                         lane / 4,
                                         lane % 4};
      task.run(KRange(p, part, schedule.parts, per_chunk));
    }
  }
#endif
}

template <int kWords, bool kSigned>
__global__ void __launch_bounds__(kExpandThreads)
    expand(const __grid_constant__ GemmProblem p, uint8_t* workspace) {
#if SCMP_HAS_B1
  const int64_t tiles = p.batches * ((p.m + kTileColumns - 1) / kTileColumns);
  expand_tiles<kWords, kSigned, kExpandThreads>(p, 0, tiles, stages_of<kWords>(p), workspace);
#endif
}

// Whether the shape whose chunk sums wait in shared memory exists and pays.
template <int kWords, bool kSigned>
bool keeps_chunk_sums(const GemmProblem& p, const DeviceLimits& device) {
  using B = Block<kWords, Shape::chunk_sums>;
  return kSigned && kWords >= 2 && kWords <= 8 && p.dequantizer.kind == Epilogue::chunk &&
         p.n > B::kRows / 2 && B::kShared <= device.shared_memory && p.partial == nullptr &&
         p.chunk * p.tables.length < kSmallSum;
}

template <int kWords>
struct Launch {
  static constexpr int kLeastShared = Block<kWords, Shape::small>::kShared;
  static int64_t tile_bytes(const GemmProblem& p) {
    return stages_of<kWords>(p) * BStage<kWords>::kBytes;
  }
  static int64_t parts(const GemmProblem& p, int64_t tiles, const DeviceLimits& device) {
    using B = Block<kWords, Shape::small>;
    const int64_t blocks = tiles * ((p.n + B::kRows - 1) / B::kRows);
    const int64_t wanted = device.multiprocessors * B::kPerMultiprocessor / blocks;
    const int64_t most = p.chunks > 1 ? p.chunks : stages_of<kWords>(p) / kLeastStages;
    return std::max<int64_t>(1, std::min(wanted, most));
  }
  template <bool kSigned, Shape kShape>
  static void multiply(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                       const DeviceLimits& device, cudaStream_t stream) {
    using B = Block<kWords, kShape>;
    const auto kernel = gemm<kWords, kSigned, kShape>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, B::kShared);
    int per_multiprocessor = 1;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, B::kThreads,
                                                  B::kShared);
    const int64_t resident = int64_t{per_multiprocessor} * device.multiprocessors;
    const int64_t items = schedule.slab * schedule.parts * ((p.n + B::kRows - 1) / B::kRows);
    const int64_t expansions = schedule.expanded ? 0 : schedule.slab * stages_of<kWords>(p);
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(std::min(resident, std::max(items, expansions))));
    config.blockDim = dim3(B::kThreads);
    config.dynamicSmemBytes = B::kShared;
    config.stream = stream;
    cudaLaunchAttribute cooperative = {};
    cooperative.id = cudaLaunchAttributeCooperative;
    cooperative.val.cooperative = 1;
    config.attrs = &cooperative;
    config.numAttrs = schedule.expanded ? 0 : 1;
    cudaLaunchKernelEx(&config, kernel, p, bits, schedule);
  }
  template <bool kSigned>
  static void run(const GemmProblem& p, void* workspace, int64_t slab, bool expanded,
                  const DeviceLimits& device, cudaStream_t stream) {
    auto* bits = static_cast<uint8_t*>(workspace);
    int64_t parts = 1;
    if (p.partial) parts = p.chunks > 1 ? Launch::parts(p, slab, device) : p.slots;
    const Schedule schedule{slab, parts, expanded};
    if constexpr (kSigned && kWords >= 2 && kWords <= 8) {
      if (keeps_chunk_sums<kWords, kSigned>(p, device)) {
        return multiply<kSigned, Shape::chunk_sums>(p, bits, schedule, device, stream);
      }
    }
    multiply<kSigned, Shape::small>(p, bits, schedule, device, stream);
  }
  template <bool kSigned>
  static void expand_all(const GemmProblem& p, void* workspace, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>(
        std::min<int64_t>(column_tiles(p) * stages_of<kWords>(p), kExpandBlocks));
    expand<kWords, kSigned>
        <<<blocks, kExpandThreads, 0, stream>>>(p, static_cast<uint8_t*>(workspace));
  }
};

// Calls visit with the Launch of the problem's words per position.
template <typename Visit>
auto with_words(int words, const Visit& visit) {
  switch (words) {
    case 2:
      return visit(Launch<2>{});
    case 4:
      return visit(Launch<4>{});
    case 8:
      return visit(Launch<8>{});
    case 32:
      return visit(Launch<32>{});
    default:
      return visit(Launch<128>{});
  }
}

}  // namespace

std::string mma_b1_refuses(const GemmProblem& p, const DeviceLimits& device) {
  if (device.major < 8) return "it needs compute capability 8.0";
  if (device.major >= 10) return "b1 products are emulated from compute capability 10.0 on";
  return with_words(p.tables.words, [&](auto launch) -> std::string {
    using L = decltype(launch);
    if (p.tables.b_bits == nullptr) return "the bit tables of this config do not fit in memory";
    if (L::kLeastShared > device.shared_memory) {
      return "it needs more shared memory than a block has here";
    }
    if (column_tiles(p) >= (int64_t{1} << 31)) return "it has too many tiles";
    if (L::tile_bytes(p) > kMostTileBytes) return "b's bits of one tile exceed 506 MiB";
    if (p.chunk * p.tables.length >= (int64_t{1} << 31)) return "sums need more than 32 bits";
    return "";
  });
}

int64_t mma_b1_workspace(const GemmProblem& p, int64_t tiles) {
  return with_words(p.tables.words,
                    [&](auto launch) { return tiles * decltype(launch)::tile_bytes(p); });
}

int64_t mma_b1_parts(const GemmProblem& p, int64_t tiles, const DeviceLimits& device) {
  return with_words(p.tables.words,
                    [&](auto launch) { return decltype(launch)::parts(p, tiles, device); });
}

int mma_b1_positions(int words) { return words < 64 ? 64 / words : 1; }

void mma_b1_gemm(const GemmProblem& p, void* workspace, int64_t tiles, bool expanded,
                 const DeviceLimits& device, cudaStream_t stream) {
  with_words(p.tables.words, [&](auto launch) {
    using L = decltype(launch);
    if (p.unipolar) {
      L::template run<false>(p, workspace, tiles, expanded, device, stream);
    } else {
      L::template run<true>(p, workspace, tiles, expanded, device, stream);
    }
  });
}

void mma_b1_expand(const GemmProblem& p, void* workspace, cudaStream_t stream) {
  with_words(p.tables.words, [&](auto launch) {
    using L = decltype(launch);
    if (p.unipolar) {
      L::template expand_all<false>(p, workspace, stream);
    } else {
      L::template expand_all<true>(p, workspace, stream);
    }
  });
}

}  // namespace scmp::cuda
