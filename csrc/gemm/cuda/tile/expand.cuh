// b's codes to bit patterns and correction terms, stage by stage.
#pragma once

#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/mma/patterns.cuh"
#include "gemm/cuda/tile/fragments.cuh"

namespace scmp::cuda {

constexpr int kPairs = 4;  // of k256 steps per stage

/// How the words of a pair of k256 steps and the terms lie. The order of bits within a product is
/// free: lane t of a fragment holds words 4t .. 4t + 3 of the pair's 16.
enum class BOrder {
  lanes,   // [column][lane][4 words]: a lane of mma.sync reads its words at once; terms [column]
  pieces,  // [piece of a step][column][lane]: what wgmma's descriptors ask for; terms likewise
};

/// A stage of b: bits [pair], then the s8 terms, a multiple of 32 bytes per column; with kPrefixes
/// the terms of every prefix of the cycles (see WordOrder), shortest first.
template <int kWords, int kPrefixes = 1>
struct BStage {
  static constexpr int kBits = kPairs * kTileColumns * 64;
  static constexpr int kTerms = kTileColumns * Pattern<kWords>::kTermBytes;
  static constexpr int kBytes = kBits + kPrefixes * kTerms;
};

/// Where b's terms `quad` (four bytes) of a column go within a stage's terms.
template <int kWords, BOrder kOrder>
__device__ __forceinline__ int term_word(int column, int quad) {
  constexpr int kQuads = Pattern<kWords>::kTermBytes / 4;
  if constexpr (kOrder == BOrder::lanes) return column * kQuads + quad;
  // Words 2t and 2t + 1 of 8 are lane t's, of pieces 0 and 1.
  return ((quad / 8 * 2 + quad % 2) * kTileColumns + column) * 4 + quad % 8 / 2;
}

/// Four neighbouring words of a column's patterns, from the table's.
template <int kWords, BOrder kOrder>
__device__ __forceinline__ void store_words(uint8_t* out, int pair, int column, int t,
                                            const uint32_t (&words)[4]) {
  const int within = column * 4 + t;
  if constexpr (kOrder == BOrder::lanes) {
    reinterpret_cast<uint4*>(out)[pair * kTileColumns * 4 + within] =
        make_uint4(words[0], words[1], words[2], words[3]);
  } else {
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
      reinterpret_cast<uint32_t*>(out)[(4 * pair + piece) * kTileColumns * 4 + within] =
          words[piece];
    }
  }
}

/// A stage on the K axis and the columns of a tile, as expanding needs them.
struct ExpandAt {
  int64_t batch, first_column, chunk, first;  // first: position in the chunk
  int positions, columns, half;               // that exist; which stage of a long position
  const int16_t* codes;                       // of the first column and position

  // 32-bit divisions: the host refuses more stages or tiles.
  template <int kWords>
  __device__ static ExpandAt make(const GemmProblem& p, uint32_t stage, uint32_t tile) {
    using P = Pattern<kWords>;
    ExpandAt at;
    const auto tiles = static_cast<uint32_t>((p.m + kTileColumns - 1) / kTileColumns);
    const uint32_t batch = p.batches == 1 ? 0 : tile / tiles;
    at.batch = batch;
    at.first_column = int64_t{tile - batch * tiles} * kTileColumns;
    const uint32_t code_stage = stage / P::kStagesPerPosition;
    const auto per_chunk = static_cast<uint32_t>(p.a_layout.stages_per_chunk);
    const uint32_t chunk = p.chunks == 1 ? 0 : code_stage / per_chunk;
    at.chunk = chunk;
    at.first = int64_t{code_stage - chunk * per_chunk} * P::kPositions;
    at.positions =
        static_cast<int>(min(chunk_columns(p, at.chunk) - at.first, int64_t{P::kPositions}));
    at.columns = static_cast<int>(min(p.m - at.first_column, int64_t{kTileColumns}));
    at.half = static_cast<int>(stage % P::kStagesPerPosition);
    at.codes = b_codes_at(p, at.batch, at.chunk, at.first_column) + at.first;
    return at;
  }
  /// What is stored there, not checked yet.
  __device__ int code(const GemmProblem& p, int column, int i) const {
    return column < columns && i < positions ? codes[column * p.d + i] : 0;
  }
  /// First word of position i's pattern of a code.
  __device__ const uint32_t* pattern(const DeviceTables& t, const uint32_t* table, int i,
                                     int code) const {
    const int64_t lane =
        i < positions ? lane_of_position(t.lane_of, t.lanes, first + i) : int64_t{0};
    return table + (lane * (t.levels + 1) + abs(code)) * t.words;
  }
};

/// Expands stages of tiles with kThreads threads (the first of the block), for patterns of at most
/// 8 words. `table` holds p.tables.b_bits, here or in shared memory. A thread takes lane t of some
/// columns, all pairs of steps: it counts the ones of what it writes, for the terms. read() and
/// write() are apart so that the codes of one stage can come while another is written.
template <int kWords, bool kSigned, int kThreads, BOrder kOrder>
struct Expander {
  static_assert(kWords <= 8 && kTileColumns * 4 % kThreads == 0);
  static constexpr int kTasks = kTileColumns * 4 / kThreads;
  static constexpr int kCodes = kWords == 2 ? 2 : 1;  // positions among a lane's four words
  static constexpr int kGroup = 4 / kCodes;
  const GemmProblem* problem;
  const uint32_t* table;
  ExpandAt at;
  int16_t stored[kTasks][kPairs][kCodes];  // codes, to be checked

  __device__ Expander(const GemmProblem& p, const uint32_t* bits) : problem(&p), table(bits) {}

  __device__ static int column_of(int task) { return (threadIdx.x + task * kThreads) / 4; }

  __device__ void read(uint32_t stage, uint32_t tile) {
    const GemmProblem& p = *problem;
    at = ExpandAt::make<kWords>(p, stage, tile);
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
        for (int j = 0; j < kCodes; ++j) {
          stored[task][pair][j] =
              static_cast<int16_t>(at.code(p, column_of(task), (16 * pair + 4 * t) / kWords + j));
        }
      }
    }
  }

  __device__ void write(uint8_t* out) const {
#pragma unroll
    for (int task = 0; task < kTasks; ++task) write_task(task, out);
  }

 private:
  __device__ void write_task(int task, uint8_t* out) const {
    const GemmProblem& p = *problem;
    const DeviceTables& tables = p.tables;
    auto* terms = reinterpret_cast<uint32_t*>(out + BStage<kWords>::kBits);
    const int column = column_of(task), t = threadIdx.x % 4;
    bool bad = false;
    int code[kPairs][kCodes];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
      for (int j = 0; j < kCodes; ++j) code[pair][j] = checked_code(p, stored[task][pair][j], bad);
    }
    uint32_t words[kPairs][4];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
      for (int j = 0; j < kCodes; ++j) {
        const int word = 16 * pair + 4 * t;
        const uint32_t* from =
            at.pattern(tables, table, word / kWords + j, code[pair][j]) + word % kWords;
        if constexpr (kGroup == 4) {
          const uint4 four = *reinterpret_cast<const uint4*>(from);
          words[pair][0] = four.x;
          words[pair][1] = four.y;
          words[pair][2] = four.z;
          words[pair][3] = four.w;
        } else {
          const uint2 two = *reinterpret_cast<const uint2*>(from);
          words[pair][2 * j] = two.x;
          words[pair][2 * j + 1] = two.y;
        }
      }
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      uint32_t value[kCodes];  // a position's term and sign, in two bytes (of 8 words: halves)
#pragma unroll
      for (int j = 0; j < kCodes; ++j) {
        int ones = 0;
#pragma unroll
        for (int w = 0; w < kGroup; ++w) ones += __popc(words[pair][j * kGroup + w]);
        if (kSigned && kWords == 8) ones += __shfl_xor_sync(~0u, ones, 1);
        const bool negative = code[pair][j] < 0;
        value[j] = (b_term(negative, ones, tables.length) & (kWords == 8 ? 0xffff : 0xff)) |
                   (negative ? (kWords == 8 ? 0x10000u : 0x100u) : 0u);
        if (kSigned && negative) {  // complement the cycles that exist
#pragma unroll
          for (int w = 0; w < kGroup; ++w) {
            words[pair][j * kGroup + w] ^=
                thermometer(tables.length, (16 * pair + 4 * t) % kWords + w);
          }
        }
      }
      store_words<kWords, kOrder>(out, pair, column, t, words[pair]);
      if constexpr (!kSigned) continue;
      if constexpr (kWords == 2) {
        terms[term_word<kWords, kOrder>(column, 4 * pair + t)] = value[0] | value[1] << 16;
      } else if constexpr (kWords == 4) {
        const uint32_t other = __shfl_xor_sync(~0u, value[0], 1);
        if (t % 2 == 0) {
          terms[term_word<kWords, kOrder>(column, 2 * pair + t / 2)] = value[0] | other << 16;
        }
      } else if (t % 2 == 0) {
        const int v = static_cast<int16_t>(value[0]), negative = value[0] >> 16;
        terms[term_word<kWords, kOrder>(column, 2 * pair + t / 2)] =
            bytes(v >> 6, v & 63, 64 * negative, negative);
      }
    }
    if (bad) mark_damaged(p, at.batch, at.first_column + column);
  }
};

/// Expands this block's share of `count` stages of tiles, `stages` to a tile, from `first_tile` on,
/// with an Expander of stages of kBytes.
template <typename Expander, int kBytes>
__device__ void expand_share(const GemmProblem& p, const uint32_t* table, uint32_t first_tile,
                             uint32_t count, uint32_t stages, uint8_t* out) {
  // Neighbouring stages, whose codes lie together.
  const uint32_t share = (count + gridDim.x - 1) / gridDim.x, first = blockIdx.x * share;
  const uint32_t last = min(count, first + share);
  if (first >= last) return;
  Expander now(p, table);
  constexpr bool kAhead = now.kTasks == 1;  // else a thread has reads enough of its own
  if (kAhead) now.read(first % stages, first_tile + first / stages);
  for (uint32_t i = first; i < last; ++i) {
    uint8_t* to = out + int64_t{i} * kBytes;
    if constexpr (kAhead) {
      auto next = now;
      if (i + 1 < last) next.read((i + 1) % stages, first_tile + (i + 1) / stages);
      now.write(to);
      now = next;
    } else {
      now.read(i % stages, first_tile + i / stages);
      now.write(to);
    }
  }
}

/// The same for longer patterns, of which a stage holds one or two positions or less.
template <int kWords, bool kSigned, int kThreads, BOrder kOrder>
__device__ void expand_long_stage(const GemmProblem& p, uint32_t stage, uint32_t tile,
                                  uint8_t* out) {
  using P = Pattern<kWords>;
  static_assert(kWords > 8);
  const DeviceTables& tables = p.tables;
  const auto at = ExpandAt::make<kWords>(p, stage, tile);
#pragma unroll 4
  for (int task = threadIdx.x; task < kPairs * kTileColumns * 4; task += kThreads) {
    const int pair = task / (kTileColumns * 4), column = task / 4 % kTileColumns, t = task % 4;
    const int word = 16 * pair + 4 * t, i = word / kWords;
    const int within = kWords < P::kStageWords ? word % kWords : at.half * P::kStageWords + word;
    bool bad = false;
    const int code = checked_code(p, at.code(p, column, i), bad);
    const uint4 four =
        __ldg(reinterpret_cast<const uint4*>(at.pattern(tables, tables.b_bits, i, code) + within));
    uint32_t words[4] = {four.x, four.y, four.z, four.w};
    if (kSigned && code < 0) {
#pragma unroll
      for (int w = 0; w < 4; ++w) words[w] ^= thermometer(tables.length, within + w);
    }
    store_words<kWords, kOrder>(out, pair, column, t, words);
    if (bad) mark_damaged(p, at.batch, at.first_column + column);
  }
  if (!kSigned || at.half != 0) return;  // a position's terms count once
  constexpr int kQuads = P::kTermBytes / 4;
  auto* terms = reinterpret_cast<uint32_t*>(out + BStage<kWords>::kBits);
  for (int task = threadIdx.x; task < kTileColumns * kQuads; task += kThreads) {
    const int column = task / kQuads, quad = task % kQuads;
    uint32_t four = 0;
    if (quad < P::kPositions) {
      bool bad = false;  // marked above
      const int code = checked_code(p, at.code(p, column, quad), bad), negative = code < 0;
      const int64_t lane = quad < at.positions
                               ? lane_of_position(tables.lane_of, tables.lanes, at.first + quad)
                               : int64_t{0};
      const int ones = tables.b_ones[lane * (tables.levels + 1) + abs(code)];
      const int value = b_term(negative, ones, tables.length);
      four = bytes(value >> 6, value & 63, 64 * negative, negative);
    }
    terms[term_word<kWords, kOrder>(column, quad)] = four;
  }
}

}  // namespace scmp::cuda
