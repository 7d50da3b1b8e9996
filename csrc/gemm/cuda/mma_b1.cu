#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/mma/patterns.cuh"
#include "gemm/cuda/mma_b1.h"
#include "gemm/cuda/ptx/cp_async.cuh"
#include "gemm/cuda/ptx/mma_b1.cuh"
#include "gemm/cuda/tile/epilogue.cuh"

// From sm_100 on b1 products are emulated and slow to compile: other kernels run there.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 1000
#define SCMP_HAS_B1 1
#else
#define SCMP_HAS_B1 0
#endif

namespace scmp::cuda {
namespace {

constexpr int kTile = 128;     // columns of a block's tile
constexpr int kWarpRows = 32;  // a warp takes 32 rows x 128 columns
constexpr int kRowFragments = kWarpRows / 16, kColumnFragments = kTile / 8;
constexpr int kPairs = 4;  // of k256 steps per stage
constexpr int kExpandThreads = 256;

// A stage of b in the workspace and in shared memory: bits [pair][column][lane t][4 words], then
// the s8 terms [column][term bytes]. The order of bits within a product is free: in a pair of k256
// steps lane t of a fragment holds words 4t .. 4t + 3 of the pair's 16, one 16-byte read from the
// table.
template <int kWords>
struct BStage {
  static constexpr int kBits = kPairs * kTile * 64;
  static constexpr int kTerms = kTile * Pattern<kWords>::kTermBytes;
  static constexpr int kBytes = kBits + kTerms;
};

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
  static constexpr int kSums = kShape == Shape::small ? 0 : kRows * kTile * 4;
  static constexpr int kShared = 2 * kStage + kSums;
  static constexpr int kPerMultiprocessor = kShape == Shape::small ? 2 : 1;
};

// b's codes to bit patterns and terms, in the order that the gemm reads them.
template <int kWords, bool kSigned>
__global__ void __launch_bounds__(kExpandThreads)
    expand(const __grid_constant__ GemmProblem p, uint8_t* workspace, int64_t first_tile) {
#if SCMP_HAS_B1
  using P = Pattern<kWords>;
  constexpr int kGroup = kWords < 4 ? kWords : 4;  // words of one position read together
  const DeviceTables& t = p.tables;
  const int64_t stages = p.b_layout.stages * P::kStagesPerPosition;
  const int64_t stage = blockIdx.x;
  const int64_t tile = first_tile + blockIdx.y, tiles = (p.m + kTile - 1) / kTile;
  const int64_t batch = tile / tiles, first_column = tile % tiles * kTile;
  const int64_t code_stage = stage / P::kStagesPerPosition;
  const int64_t first = code_stage % p.b_layout.stages_per_chunk * P::kPositions;  // in its chunk
  const int half = static_cast<int>(stage % P::kStagesPerPosition);
  const int16_t* codes =
      p.b_codes + (batch * p.b_layout.stages + code_stage) * p.b_layout.rows_padded * P::kPositions;
  uint8_t* out = workspace + (blockIdx.y * stages + stage) * BStage<kWords>::kBytes;

  const auto code_of = [&](int64_t column, int i) -> int {
    if (column >= p.m) return 0;
    return codes[column * P::kPositions + i];
  };
  const auto lane_of = [&](int i) -> int64_t {
    if (first + i >= p.chunk) return 0;  // padding: its codes are 0
    return lane_of_position(t.lane_of, t.lanes, first + i);
  };

  for (int task = threadIdx.x; task < kPairs * kTile * 4; task += kExpandThreads) {
    const int column = task / 4 % kTile;
    const int word = 16 * (task / (4 * kTile)) + 4 * (task % 4);
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; j += kGroup) {
      const int i = kWords < P::kStageWords ? (word + j) / kWords : 0;
      const int within =
          kWords < P::kStageWords ? (word + j) % kWords : half * P::kStageWords + word;
      const int code = code_of(first_column + column, i);
      const uint32_t* bits =
          t.b_bits + (lane_of(i) * (t.levels + 1) + abs(code)) * int64_t{kWords} + within;
      if constexpr (kGroup == 4) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(bits));
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
      } else {
#pragma unroll
        for (int w = 0; w < kGroup; ++w) words[j + w] = bits[w];
      }
      if (kSigned && code < 0) {  // complement the cycles that exist
#pragma unroll
        for (int w = 0; w < kGroup; ++w) words[j + w] ^= thermometer(t.length, within + w);
      }
    }
    reinterpret_cast<uint4*>(out)[task] = make_uint4(words[0], words[1], words[2], words[3]);
  }
  if (!kSigned || half != 0) return;  // a position's terms count once
  for (int column = threadIdx.x; column < kTile; column += kExpandThreads) {
    auto* terms = reinterpret_cast<uint32_t*>(out + BStage<kWords>::kBits + column * P::kTermBytes);
    int v[P::kTermBytes];
#pragma unroll
    for (int i = 0; i < P::kTermBytes; ++i) v[i] = 0;
#pragma unroll
    for (int i = 0; i < P::kPositions; ++i) {
      const int code = code_of(first_column + column, i);
      const int ones = t.b_ones[lane_of(i) * (t.levels + 1) + abs(code)];
      const int value = b_term(code < 0, ones, t.length), negative = code < 0;
      if constexpr (P::kTerms == 2) {
        v[2 * i] = value;
        v[2 * i + 1] = negative;
      } else {
        v[4 * i] = value >> 6;
        v[4 * i + 1] = value & 63;
        v[4 * i + 2] = 64 * negative;
        v[4 * i + 3] = negative;
      }
    }
#pragma unroll
    for (int i = 0; i < P::kTermBytes / 4; ++i) {
      terms[i] = bytes(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
    }
  }
#endif
}

template <int kWords, bool kSigned, Shape kShape>
struct Gemm {
  using P = Pattern<kWords>;
  using B = Block<kWords, kShape>;
  static constexpr int kThreads = B::kThreads;
  const GemmProblem& p;
  uint8_t* shared;
  const uint8_t* b_stages;  // of this block's tile
  int64_t batch, first_row, first_column, stages;
  int warp_row, g, t;  // the warp's first row; fragment coordinates
  int acc[kRowFragments][kColumnFragments][4];

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

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kRowFragments; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnFragments; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) acc[i][j][c] = 0;
      }
    }
  }

  // A row of this thread's fragments: warp_row + 16 mf + g + 8 r.
  __device__ const int16_t* a_row(const int16_t* a, int mf, int r) const {
    return a + (warp_row + 16 * mf + g + 8 * r) * P::kPositions;
  }

  // Words 4t .. 4t + 3 of a pair for one row: signed cycles become thermometers, complemented where
  // they are negative.
  __device__ void a_words(const int16_t* row, int pair, int half_position,
                          uint32_t (&words)[4]) const {
    constexpr int kGroup = kWords < 4 ? kWords : 4;  // words of one position
    const int word = 16 * pair + 4 * t;
#pragma unroll
    for (int j = 0; j < 4; j += kGroup) {
      const int i = kWords < P::kStageWords ? (word + j) / kWords : 0;
      const int within =
          kWords < P::kStageWords ? (word + j) % kWords : half_position * P::kStageWords + word;
      const int k = row[i], cycles = kSigned ? abs(k) : k;
      const auto flip = kSigned ? static_cast<uint32_t>(k >> 31) : 0u;
#pragma unroll
      for (int w = 0; w < kGroup; ++w) words[j + w] = thermometer(cycles, within + w) ^ flip;
    }
  }

  // a's fragments of the two k256 steps of a pair.
  __device__ void a_fragments(const int16_t* a, int pair, int half_position,
                              uint32_t (&fragments)[2][kRowFragments][4]) const {
#pragma unroll
    for (int mf = 0; mf < kRowFragments; ++mf) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t words[4];
        a_words(a_row(a, mf, r), pair, half_position, words);
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
#pragma unroll 1
    for (int pair = 0; pair < kPairs; ++pair) {
      uint32_t fragments[2][kRowFragments][4];
      a_fragments(a, pair, half_position, fragments);
      const auto* quads = reinterpret_cast<const uint4*>(b + pair * kTile * 64);
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
            mma_b1_and_popc(acc[mf][first + i], fragments[0][mf], q[i].x, q[i].y);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
          for (int mf = 0; mf < kRowFragments; ++mf) {
            mma_b1_and_popc(acc[mf][first + i], fragments[1][mf], q[i].z, q[i].w);
          }
        }
      }
    }
    if (kSigned && half_position == 0) correct(a, b + BStage<kWords>::kBits);
  }

  // Four s8 terms of a: of positions 2i, 2i+1 (two terms each) or of position i (four).
  __device__ uint32_t a_terms(const int16_t* row, int i) const {
    const int length = p.tables.length;
    if constexpr (P::kTerms == 2) {
      const int k0 = row[2 * i], k1 = row[2 * i + 1];
      return bytes(k0 < 0, a_term(k0, length), k1 < 0, a_term(k1, length));
    } else {
      if (i >= P::kPositions) return 0;
      const int k = row[i], value = a_term(k, length), negative = k < 0;
      return bytes(64 * negative, negative, value >> 6, value & 63);
    }
  }

  __device__ void correct(const int16_t* a, const uint8_t* terms) {
#pragma unroll 1
    for (int block = 0; block < P::kTermBytes / 32; ++block) {
      uint32_t fragments[kRowFragments][4];
#pragma unroll
      for (int mf = 0; mf < kRowFragments; ++mf) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int16_t* row = a_row(a, mf, r);
          fragments[mf][r] = a_terms(row, 8 * block + 2 * t);
          fragments[mf][2 + r] = a_terms(row, 8 * block + 2 * t + 1);
        }
      }
#pragma unroll
      for (int nf = 0; nf < kColumnFragments; ++nf) {
        const uint2 q = *reinterpret_cast<const uint2*>(terms + (8 * nf + g) * P::kTermBytes +
                                                        32 * block + 8 * t);
#pragma unroll
        for (int mf = 0; mf < kRowFragments; ++mf) mma_s8(acc[mf][nf], fragments[mf], q.x, q.y);
      }
    }
  }

  // Sums of earlier chunks of this thread's pair `slot`, in shared memory.
  __device__ float2& kept(int slot) {
    return reinterpret_cast<float2*>(shared + 2 * B::kStage)[slot * kThreads + threadIdx.x];
  }

  __device__ void write(int64_t chunk) {
    const OutputTile tile(p, batch, chunk, first_column);
    const bool last = chunk + 1 == p.chunks;
#pragma unroll
    for (int mf = 0; mf < kRowFragments; ++mf) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t row = first_row + warp_row + 16 * mf + g + 8 * r;
        if (row >= p.n) continue;
        const OutputRow out(tile, row);
        if (!tile.scaled) {
#pragma unroll
          for (int nf = 0; nf < kColumnFragments; ++nf) {
            out.write_unscaled(8 * nf + 2 * t, acc[mf][nf][2 * r], acc[mf][nf][2 * r + 1]);
          }
          continue;
        }
        // Eight pairs at a time: all loads before the first store.
#pragma unroll
        for (int first = 0; first < kColumnFragments; first += 8) {
          float2 before[8];
          const int slot = (2 * mf + r) * kColumnFragments + first;
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            before[i] = chunk == 0               ? make_float2(0.0f, 0.0f)
                        : kShape == Shape::small ? out.load(8 * (first + i) + 2 * t)
                                                 : kept(slot + i);
          }
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            const int column = 8 * (first + i) + 2 * t;
            const float2 value = out.value(column, acc[mf][first + i][2 * r],
                                           acc[mf][first + i][2 * r + 1], before[i]);
            if (kShape == Shape::small || last) {
              out.store(column, value);
            } else {
              kept(slot + i) = value;
            }
          }
        }
      }
    }
  }

  __device__ void run() {
    const int64_t per_chunk = p.a_layout.stages_per_chunk * P::kStagesPerPosition;
    int64_t chunk = 0, left = per_chunk;
    fetch(0);
    clear();
    for (int64_t stage = 0; stage < stages; ++stage) {
      cp_async_wait<0>();
      __syncthreads();
      if (stage + 1 < stages) fetch(stage + 1);
      multiply(stage);
      if (--left == 0) {
        write(chunk++);
        clear();
        left = per_chunk;
      }
    }
  }
};

template <int kWords, bool kSigned, Shape kShape>
__global__ void __launch_bounds__(Block<kWords, kShape>::kThreads,
                                  Block<kWords, kShape>::kPerMultiprocessor)
    gemm(const __grid_constant__ GemmProblem p, const uint8_t* workspace, int64_t first_tile) {
#if SCMP_HAS_B1
  extern __shared__ __align__(16) uint8_t shared[];
  const int64_t tile = first_tile + blockIdx.y, tiles = (p.m + kTile - 1) / kTile;
  const int64_t stages = p.a_layout.stages * Pattern<kWords>::kStagesPerPosition;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Gemm<kWords, kSigned, kShape> task{p,
                                     shared,
                                     workspace + blockIdx.y * stages * BStage<kWords>::kBytes,
                                     tile / tiles,
                                     int64_t{blockIdx.x} * Block<kWords, kShape>::kRows,
                                     tile % tiles * kTile,
                                     stages,
                                     warp * kWarpRows,
                                     lane / 4,
                                     lane % 4};
  task.run();
#endif
}

template <int kWords>
struct Launch {
  static constexpr int kLeastShared = Block<kWords, Shape::small>::kShared;
  static int64_t tile_bytes(const GemmProblem& p) {
    return p.b_layout.stages * Pattern<kWords>::kStagesPerPosition * BStage<kWords>::kBytes;
  }
  template <bool kSigned, Shape kShape>
  static void multiply(const GemmProblem& p, const uint8_t* bits, int64_t first, int64_t count,
                       cudaStream_t stream) {
    using B = Block<kWords, kShape>;
    const auto kernel = gemm<kWords, kSigned, kShape>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, B::kShared);
    const dim3 grid(static_cast<unsigned>((p.n + B::kRows - 1) / B::kRows),
                    static_cast<unsigned>(count));
    kernel<<<grid, B::kThreads, B::kShared, stream>>>(p, bits, first);
  }
  template <bool kSigned>
  static void run(const GemmProblem& p, void* workspace, int64_t first, int64_t count,
                  int shared_memory, cudaStream_t stream) {
    auto* bits = static_cast<uint8_t*>(workspace);
    const auto stages =
        static_cast<unsigned>(p.b_layout.stages * Pattern<kWords>::kStagesPerPosition);
    expand<kWords, kSigned>
        <<<dim3(stages, static_cast<unsigned>(count)), kExpandThreads, 0, stream>>>(p, bits, first);
    if constexpr (kSigned && (kWords == 2 || kWords == 4 || kWords == 8)) {
      using B = Block<kWords, Shape::chunk_sums>;
      if (p.chunks > 1 && p.n > B::kRows / 2 && B::kShared <= shared_memory) {
        return multiply<kSigned, Shape::chunk_sums>(p, bits, first, count, stream);
      }
    }
    multiply<kSigned, Shape::small>(p, bits, first, count, stream);
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

constexpr int64_t kMostTileBytes = int64_t{512} << 20;

}  // namespace

std::string mma_b1_refuses(const GemmProblem& p, int major, int shared_memory) {
  if (major < 8) return "it needs compute capability 8.0";
  if (major >= 10) return "b1 products are emulated from compute capability 10.0 on";
  return with_words(p.tables.words, [&](auto launch) -> std::string {
    using L = decltype(launch);
    if (p.tables.b_bits == nullptr) return "the bit tables of this config do not fit in memory";
    if (L::kLeastShared > shared_memory) return "it needs more shared memory than a block has here";
    if (L::tile_bytes(p) > kMostTileBytes) return "b's bits of one tile exceed 512 MiB";
    if (p.chunk * p.tables.length >= (int64_t{1} << 31)) return "sums need more than 32 bits";
    return "";
  });
}

int64_t mma_b1_tiles(const GemmProblem& p) { return p.batches * ((p.m + kTile - 1) / kTile); }

int64_t mma_b1_workspace(const GemmProblem& p, int64_t tiles) {
  return with_words(p.tables.words,
                    [&](auto launch) { return tiles * decltype(launch)::tile_bytes(p); });
}

int mma_b1_positions(int words) { return words < 64 ? 64 / words : 1; }

void mma_b1_gemm(const GemmProblem& p, void* workspace, int64_t first, int64_t count,
                 int shared_memory, cudaStream_t stream) {
  with_words(p.tables.words, [&](auto launch) {
    using L = decltype(launch);
    if (p.unipolar) {
      L::template run<false>(p, workspace, first, count, shared_memory, stream);
    } else {
      L::template run<true>(p, workspace, first, count, shared_memory, stream);
    }
  });
}

}  // namespace scmp::cuda
