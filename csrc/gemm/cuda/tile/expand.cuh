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

/// One position's pattern: kWords words.
template <int kWords>
__device__ __forceinline__ void load_pattern(const uint32_t* from, uint32_t (&words)[kWords]) {
  if constexpr (kWords == 2) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    words[0] = two.x;
    words[1] = two.y;
  } else {
#pragma unroll
    for (int w = 0; w < kWords; w += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[w / 4];
      words[w] = four.x;
      words[w + 1] = four.y;
      words[w + 2] = four.z;
      words[w + 3] = four.w;
    }
  }
}

/// A column's codes of kCount positions of a stage, two to a word.
template <int kWords, int kCount = Pattern<kWords>::kPositions>
struct ColumnCodes {
  uint32_t two[kCount / 2];

  /// What is stored there from position `first` on, not checked yet; 0 past the ends.
  __device__ __forceinline__ void read(const GemmProblem& p, const ExpandAt& at, int column,
                                       int first = 0) {
    constexpr int kAll = Pattern<kWords>::kPositions;
    const bool whole = at.positions == kAll && column < at.columns;
    if (kCount % 8 == 0 && whole && p.d % 8 == 0 && p.chunk % 8 == 0) {
      const auto* from = reinterpret_cast<const uint4*>(at.codes + column * p.d + first);
#pragma unroll
      for (int i = 0; i < kCount / 8; ++i) {
        const uint4 eight = __ldg(from + i);
        two[4 * i] = eight.x;
        two[4 * i + 1] = eight.y;
        two[4 * i + 2] = eight.z;
        two[4 * i + 3] = eight.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        two[i / 2] = (at.code(p, column, first + i) & 0xffff) |
                     static_cast<uint32_t>(at.code(p, column, first + i + 1)) << 16;
      }
    }
  }
};

/// Where the patterns of a stage's positions begin in the table, in words: position i's in lane i
/// of the warp, which has the stage to itself.
struct TableRows {
  uint32_t mine;

  __device__ __forceinline__ TableRows(const DeviceTables& t, const ExpandAt& at) {
    const int i = threadIdx.x % 32;
    const int64_t lane =
        i < at.positions ? lane_of_position(t.lane_of, t.lanes, at.first + i) : int64_t{0};
    mine = static_cast<uint32_t>(lane * (t.levels + 1) * t.words);
  }
  __device__ __forceinline__ uint32_t of(int i) const { return __shfl_sync(~0u, mine, i); }
};

/// A code of b as expanding needs it.
struct SignedCode {
  uint32_t magnitude;
  int sign;  // -1 where negative, else 0
};

/// Takes codes out of pairs; those that no quantizer makes come back as others, and good() is
/// false.
struct CheckedCodes {
  uint32_t most, forbidden, bad = 0;

  __device__ __forceinline__ explicit CheckedCodes(const GemmProblem& p)
      : most(static_cast<uint32_t>(p.tables.levels) * 0x10001u),
        forbidden(p.unipolar ? 0x80008000u : 0u) {}
  /// The i-th, `pairs` holding two to a word.
  template <int kCount>
  __device__ __forceinline__ SignedCode at(const uint32_t (&pairs)[kCount], int i) {
    const uint32_t two = pairs[i / 2], absolute = __vabs2(two), within = __vminu2(absolute, most);
    bad |= (absolute ^ within) | (two & forbidden);
    return {i % 2 == 0 ? within & 0xffff : within >> 16,
            static_cast<int>(i % 2 == 0 ? two << 16 : two) >> 31};
  }
  __device__ bool good() const { return bad == 0; }
};

/// The column of a tile that is the calling thread's, and which of the stages that a block expands
/// together, the same for a warp.
__device__ __forceinline__ int column_of_thread() { return threadIdx.x % kTileColumns; }
__device__ __forceinline__ int column_stage() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kTileColumns, 0);
}

/// Expands stages of tiles for patterns of at most 8 words. `table` holds p.tables.b_bits, here or
/// in shared memory. A thread takes one column of a stage: all of it, kThreads / 128 stages at a
/// time, or (kSplit, where stages are few) one of its four pairs of steps. read() and write() are
/// apart so that the codes of one stage can come while another is written.
template <int kWords, bool kSigned, int kThreads, BOrder kOrder, bool kSplit = false>
struct Expander {
  static_assert(kWords <= 8 && kThreads % kTileColumns == 0);
  static_assert(!kSplit || kThreads == kPairs * kTileColumns);
  using P = Pattern<kWords>;
  static constexpr int kStagesAtOnce = kSplit ? 1 : kThreads / kTileColumns;
  static constexpr int kOwnPairs = kSplit ? 1 : kPairs;
  static constexpr int kPairCodes = 16 / kWords;  // positions in a pair of k256 steps
  static constexpr int kPairQuads = kPairCodes * P::kTerms / 4;
  static constexpr int kQuads = kOwnPairs * kPairQuads;  // words of terms
  const GemmProblem* problem;
  const uint32_t* table;
  ExpandAt at;
  ColumnCodes<kWords, kOwnPairs * kPairCodes> codes;

  __device__ __forceinline__ Expander(const GemmProblem& p, const uint32_t* bits)
      : problem(&p), table(bits) {}

  __device__ static int stage() { return kSplit ? 0 : column_stage(); }

  __device__ __forceinline__ void read(uint32_t stage, uint32_t tile) {
    at = ExpandAt::make<kWords>(*problem, stage, tile);
    codes.read(*problem, at, column_of_thread(), first_pair() * kPairCodes);
  }

  /// False where a code was damaged: then mark() the column.
  __device__ __forceinline__ bool write(uint8_t* out) const {
    return kSigned && problem->tables.ones_are_codes ? write_stage<true>(out)
                                                     : write_stage<false>(out);
  }
  __device__ void mark() const {
    mark_damaged(*problem, at.batch, at.first_column + column_of_thread());
  }

 private:
  __device__ static int first_pair() { return kSplit ? column_stage() : 0; }

  template <bool kOnesAreCodes>
  __device__ __forceinline__ bool write_stage(uint8_t* out) const {
    const DeviceTables& t = problem->tables;
    const int column = column_of_thread();
    const TableRows rows(t, at);
    CheckedCodes checked(*problem);
    uint32_t exists[kWords];  // the cycles that do
#pragma unroll
    for (int w = 0; w < kWords; ++w) exists[w] = thermometer(t.length, w);
    uint32_t terms[kQuads];
#pragma unroll
    for (int own = 0; own < kOwnPairs; ++own) {
      const int pair = first_pair() + own;
      uint32_t words[16];
      int ones[kPairCodes];
#pragma unroll
      for (int j = 0; j < kPairCodes; ++j) {
        const int i = own * kPairCodes + j;
        const SignedCode code = checked.at(codes.two, i);
        uint32_t pattern[kWords];
        load_pattern(table + rows.of(pair * kPairCodes + j) + code.magnitude * kWords, pattern);
        ones[j] = code.magnitude;
        if (kSigned && !kOnesAreCodes) {
          ones[j] = 0;
#pragma unroll
          for (int w = 0; w < kWords; ++w) ones[j] += __popc(pattern[w]);
        }
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          words[j * kWords + w] = kSigned ? pattern[w] ^ (code.sign & exists[w]) : pattern[w];
        }
        if constexpr (kSigned && kWords == 8) {
          const int value = b_term(code.sign < 0, ones[j], t.length);
          terms[i] = bytes(value >> 6, value & 63, -64 * code.sign, -code.sign);
        } else if constexpr (kSigned) {
          if (j % 2 == 1) terms[i / 2] = two_terms<kOnesAreCodes>(i / 2, ones[j - 1], ones[j]);
        }
      }
      store_pair_words(out, pair, column, words);
    }
    if (kSigned) store_terms(out + BStage<kWords>::kBits, column, terms);
    return checked.good();
  }

  // The terms and signs of two positions at once, in the halves of a word: with c = sign * ones,
  // the term is -c - nu (L - L / 2) in eight bits.
  template <bool kOnesAreCodes>
  __device__ __forceinline__ uint32_t two_terms(int i, int first, int second) const {
    const int length = problem->tables.length;
    const uint32_t two = codes.two[i], nu = two >> 15 & 0x00010001u;
    uint32_t c = two & 0x00ff00ffu;
    if (!kOnesAreCodes) {
      const uint32_t ones = static_cast<uint32_t>(first) | static_cast<uint32_t>(second) << 16;
      c = ((ones ^ nu * 0xffffu) & 0x00ff00ffu) + nu;
    }
    const uint32_t sum = c + nu * static_cast<uint32_t>(length - length / 2);
    return ((0x01000100u - (sum & 0x00ff00ffu)) & 0x00ff00ffu) | nu << 8;
  }

  // Lane t of a fragment holds words 4t .. 4t + 3 of the pair's 16.
  __device__ __forceinline__ static void store_pair_words(uint8_t* out, int pair, int column,
                                                          const uint32_t (&w)[16]) {
    auto* to = reinterpret_cast<uint4*>(out);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kOrder == BOrder::lanes) {
        to[(pair * kTileColumns + column) * 4 + i] =
            make_uint4(w[4 * i], w[4 * i + 1], w[4 * i + 2], w[4 * i + 3]);
      } else {
        to[(4 * pair + i) * kTileColumns + column] =
            make_uint4(w[i], w[4 + i], w[8 + i], w[12 + i]);
      }
    }
  }
  __device__ __forceinline__ static void store_terms(uint8_t* out, int column,
                                                     const uint32_t (&terms)[kQuads]) {
    auto* to = reinterpret_cast<uint32_t*>(out);
    if constexpr (kSplit) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        to[term_word<kWords, kOrder>(column, first_pair() * kPairQuads + q)] = terms[q];
      }
      return;
    }
#pragma unroll
    for (int block = 0; block < kQuads / 8; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int q = 8 * block + (kOrder == BOrder::lanes ? 4 * half : half);
        constexpr int kStep = kOrder == BOrder::lanes ? 1 : 2;
        *reinterpret_cast<uint4*>(to + term_word<kWords, kOrder>(column, q)) =
            make_uint4(terms[q], terms[q + kStep], terms[q + 2 * kStep], terms[q + 3 * kStep]);
      }
    }
  }
};

/// Expands this block's share of `count` stages of tiles, `stages` to a tile, from `first_tile` on,
/// with an Expander of stages of kBytes.
template <typename Expander, int kBytes>
__device__ __forceinline__ void expand_share(const GemmProblem& p, const uint32_t* table,
                                             uint32_t first_tile, uint32_t count, uint32_t stages,
                                             uint8_t* out) {
  // Neighbouring stages, whose codes lie together.
  const uint32_t share = (count + gridDim.x - 1) / gridDim.x, first = blockIdx.x * share;
  const uint32_t last = min(count, first + share);
  uint32_t i = first + Expander::stage();
  if (i >= last) return;
  Expander now(p, table);
  now.read(i % stages, first_tile + i / stages);
  while (true) {
    const uint32_t after = i + Expander::kStagesAtOnce;
    Expander next(p, table);
    if (after < last) next.read(after % stages, first_tile + after / stages);
    if (!now.write(out + int64_t{i} * kBytes)) now.mark();
    if (after >= last) return;
    i = after;
    now = next;
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
