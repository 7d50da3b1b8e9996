// b's codes to bit patterns and correction terms, stage by stage.
#pragma once

#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/mma/lane_order.cuh"
#include "gemm/cuda/tile/fragments.cuh"

namespace scmp::cuda {

/// How the words of a pair of k256 steps and the terms lie.
enum class BOrder {
  lanes,   // patterns one after the other, lane t of a fragment holding words 4t .. 4t + 3 of the
           // pair's 16: [column][lane][4 words], which a lane of mma.sync reads at once; terms
           // [column]
  pieces,  // in LaneOrder: [piece of a step][column][lane], what wgmma's descriptors ask for; terms
           // likewise
};

/// A stage of b: bits [pair], then the s8 terms, a multiple of 32 bytes per column.
template <int kWords>
struct BStage {
  static constexpr int kBits = Pattern<kWords>::kPairs * kTileColumns * 64;
  static constexpr int kTerms = kTileColumns * Pattern<kWords>::kTermBytes;
  static constexpr int kBytes = kBits + kTerms;
};

/// Where b's terms `quad` (four bytes) of a column go within a stage's terms, in words.
template <int kWords, BOrder kOrder>
__device__ __forceinline__ int term_word(int column, int quad) {
  constexpr int kQuads = Pattern<kWords>::kTermBytes / 4;
  if constexpr (kOrder == BOrder::lanes) return column * kQuads + quad;
  // A lane's quads by its positions: of two positions, or of one of a longer pattern.
  const int lane = kWords > 4 ? quad / 2 : quad % 4, piece = kWords > 4 ? quad % 2 : quad / 4;
  return (piece * kTileColumns + column) * 4 + lane;
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

/// One position's pattern: kWords words, of a table that has as many per pattern, or the next
/// multiple of four.
template <int kWords>
__device__ __forceinline__ void load_pattern(const uint32_t* from, uint32_t (&words)[kWords]) {
  if constexpr (kWords == 1) {
    words[0] = from[0];
  } else if constexpr (kWords == 2) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    words[0] = two.x;
    words[1] = two.y;
  } else {
#pragma unroll
    for (int w = 0; w < kWords; w += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[w / 4];
      const uint32_t each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4 && w + j < kWords; ++j) words[w + j] = each[j];
    }
  }
}

/// A column's codes of kCount positions, two to a word.
template <int kCount>
struct ColumnCodes {
  uint32_t two[kCount / 2];

  /// What is stored at `from` and behind, not checked yet; of positions that do not exist 0.
  __device__ __forceinline__ void read(const GemmProblem& p, const int16_t* from, int exist) {
    if (kCount % 8 == 0 && exist >= kCount && p.d % 8 == 0 && p.chunk % 8 == 0) {
#pragma unroll
      for (int i = 0; i < kCount / 8; ++i) {
        const uint4 eight = __ldg(reinterpret_cast<const uint4*>(from) + i);
        two[4 * i] = eight.x;
        two[4 * i + 1] = eight.y;
        two[4 * i + 2] = eight.z;
        two[4 * i + 3] = eight.w;
      }
    } else {
      read_each(from, exist, [](int i) { return i; });
    }
  }
  /// The same of the positions that `position` gives.
  template <typename Position>
  __device__ __forceinline__ void read_each(const int16_t* from, int exist,
                                            const Position& position) {
    const auto code = [&](int i) { return i < exist ? from[i] : int16_t{0}; };
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      two[i / 2] = (code(position(i)) & 0xffff) | static_cast<uint32_t>(code(position(i + 1)))
                                                      << 16;
    }
  }
};

/// Patterns by lane and code, (lanes, codes, stride) words, here or in shared memory.
struct PatternTable {
  const uint32_t* bits;
  uint32_t codes, stride;
};

/// Where the patterns of up to 32 positions begin in a table, in words: position i's in lane i of
/// the warp, which has the positions to itself.
struct TableRows {
  uint32_t mine;

  __device__ __forceinline__ TableRows(const DeviceTables& t, const PatternTable& table,
                                       const ExpandAt& at) {
    const int i = threadIdx.x % 32;
    const int64_t lane =
        i < at.positions ? lane_of_position(t.lane_of, t.lanes, at.first + i) : int64_t{0};
    mine = static_cast<uint32_t>(lane) * table.codes * table.stride;
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
      : CheckedCodes(p.tables.levels, p.unipolar) {}
  __device__ __forceinline__ CheckedCodes(int levels, bool unipolar)
      : most(static_cast<uint32_t>(levels) * 0x10001u), forbidden(unipolar ? 0x80008000u : 0u) {}
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

/// Writes a column of a stage, for patterns of at most 8 words; with kSplit one of its pairs of
/// steps, the column_stage()-th.
template <int kWords, bool kSigned, BOrder kOrder, bool kSplit = false>
struct StageWriter {
  using P = Pattern<kWords>;
  using Order = LaneOrder<kWords>;
  static constexpr int kLaneWords = Order::kLaneWords;
  static_assert(!kSplit || (4 % kLaneWords == 0 && kOrder == BOrder::pieces),
                "a pair of steps has parts of patterns");
  static constexpr int kOwnPairs = kSplit ? 1 : P::kPairs;
  static constexpr int kLanePositions = 4 / kLaneWords;  // of a lane in a pair, where all are whole
  static constexpr int kCodes = kSplit ? P::kPositions / P::kPairs : P::kPositions;
  static constexpr int kQuads = kCodes * P::kTerms / 4;  // words of terms

  __device__ __forceinline__ static int first_pair() { return kSplit ? column_stage() : 0; }
  /// The position of the i-th of the codes.
  __device__ __forceinline__ static int position(int i) {
    if (!kSplit) return i;
    return Order::position(i / kLanePositions, first_pair() * kLanePositions + i % kLanePositions);
  }

  /// `rows` are those of the stage's positions from `first_row` on; codes from `first_code` on are
  /// the stage's. kOnesAreCodes: a pattern has as many ones as its code. Cycles from `length` on do
  /// not exist.
  template <bool kOnesAreCodes, int kCount>
  __device__ __forceinline__ static void write(const PatternTable& table, const TableRows& rows,
                                               int first_row, const uint32_t (&two)[kCount],
                                               int first_code, CheckedCodes& checked, int length,
                                               uint8_t* out) {
    const int column = column_of_thread();
    uint32_t exists[kWords];  // the cycles that do
#pragma unroll
    for (int w = 0; w < kWords; ++w) exists[w] = thermometer(length, w);
    uint32_t terms[kQuads] = {};  // ones at first
    uint32_t patterns[4 / Order::kShare][kWords];
#pragma unroll
    for (int own = 0; own < kOwnPairs; ++own) {
      uint32_t words[16];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // The j-th word of each lane in this pair: of its positions' words all[at], or in the
        // order of mma.sync's lanes the pair's alone.
        const int at = kSplit || kOrder == BOrder::lanes ? j : 4 * own + j;
#pragma unroll
        for (int u = 0; u < 4 / Order::kShare; ++u) {
          if (at % kLaneWords == 0) {
            int i = Order::position(u, at / kLaneWords);
            if (kSplit || kOrder == BOrder::lanes) {
              i = own * (4 / Order::kShare) * kLanePositions + u * kLanePositions + at / kLaneWords;
            }
            const SignedCode code = checked.at(two, first_code + i);
            const uint32_t row = rows.of(first_row + position(i));
            load_pattern(table.bits + row + code.magnitude * table.stride, patterns[u]);
            if (kSigned) add_ones<kOnesAreCodes>(code, patterns[u], i, length, terms);
#pragma unroll
            for (int w = 0; w < kWords; ++w) {
              if (kSigned) patterns[u][w] ^= code.sign & exists[w];
            }
          }
#pragma unroll
          for (int share = 0; share < Order::kShare; ++share) {
            words[4 * (u * Order::kShare + share) + j] =
                patterns[u][share * kLaneWords + at % kLaneWords];
          }
        }
      }
      store_pair_words(out, first_pair() + own, column, words);
    }
    if (!kSigned) return;
    if constexpr (P::kTerms == 2) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        terms[q] = two_terms<kOnesAreCodes>(two[first_code / 2 + q], terms[q], length);
      }
    }
    store_terms(out + BStage<kWords>::kBits, column, terms);
  }

 private:
  // The ones of position i's pattern, or its terms where they are four.
  template <bool kOnesAreCodes>
  __device__ __forceinline__ static void add_ones(const SignedCode& code,
                                                  const uint32_t (&pattern)[kWords], int i,
                                                  int length, uint32_t (&terms)[kQuads]) {
    auto ones = static_cast<int>(code.magnitude);
    if (!kOnesAreCodes) {
      ones = 0;
#pragma unroll
      for (int w = 0; w < kWords; ++w) ones += __popc(pattern[w]);
    }
    if constexpr (P::kTerms == 4) {
      const int value = b_term(code.sign < 0, ones, length);
      terms[i] = bytes(value >> 6, value & 63, -64 * code.sign, -code.sign);
    } else if (!kOnesAreCodes) {
      terms[i / 2] |= static_cast<uint32_t>(ones) << (16 * (i % 2));
    }
  }

  // The terms and signs of two positions at once, in the halves of a word: with c = sign * ones,
  // the term is -c - nu (L - L / 2) in eight bits. Plain terms are -nu and |beta|.
  template <bool kOnesAreCodes>
  __device__ __forceinline__ static uint32_t two_terms(uint32_t two, uint32_t ones, int length) {
    const uint32_t nu = two >> 15 & 0x00010001u;
    uint32_t c = two & 0x00ff00ffu;
    if (!kOnesAreCodes) c = ((ones ^ nu * 0xffffu) & 0x00ff00ffu) + nu;
    if constexpr (kOrder == BOrder::pieces && kPlainTerms<kWords>) {
      const uint32_t beta = (c + nu * static_cast<uint32_t>(length)) & 0x00ff00ffu;
      return beta << 8 | nu * 0xffu;
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
    if constexpr (kSplit && (P::kTerms == 4 || kLanePositions == 2)) {
      constexpr int kStep = 4 / P::kTerms;  // positions to a word
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        to[term_word<kWords, kOrder>(column, position(q * kStep) / kStep)] = terms[q];
      }
    } else if constexpr (kSplit) {  // halves of words
#pragma unroll
      for (int i = 0; i < kCodes; ++i) {
        const int at = position(i);
        reinterpret_cast<uint16_t*>(to + term_word<kWords, kOrder>(column, at / 2))[at % 2] =
            static_cast<uint16_t>(terms[i / 2] >> (16 * (i % 2)));
      }
    } else if constexpr (kOrder == BOrder::lanes) {
#pragma unroll
      for (int q = 0; q < kQuads; q += 4) {
        *reinterpret_cast<uint4*>(to + term_word<kWords, kOrder>(column, q)) =
            make_uint4(terms[q], terms[q + 1], terms[q + 2], terms[q + 3]);
      }
    } else {
      constexpr int kNext = kWords > 4 ? 2 : 1;  // from one lane's quad of a piece to the next's
#pragma unroll
      for (int piece = 0; piece < kQuads / 4; ++piece) {
        const int q = kWords > 4 ? piece : 4 * piece;
        *reinterpret_cast<uint4*>(to + term_word<kWords, kOrder>(column, q)) =
            make_uint4(terms[q], terms[q + kNext], terms[q + 2 * kNext], terms[q + 3 * kNext]);
      }
    }
  }
};

/// Expands stages of tiles of problems without lengths by row. `table` holds p.tables.b_bits, here
/// or in shared memory. A thread takes one column of a stage: all of it, kThreads / 128 stages at a
/// time, or (kSplit, where stages are few) one of its four pairs of steps. read() and write() are
/// apart so that the codes of one stage can come while another is written.
template <int kWords, bool kSigned, int kThreads, BOrder kOrder, bool kSplit = false>
struct Expander {
  using Writer = StageWriter<kWords, kSigned, kOrder, kSplit>;
  static_assert(kThreads % kTileColumns == 0);
  static_assert(!kSplit || kThreads == Pattern<kWords>::kPairs * kTileColumns);
  static constexpr int kStagesAtOnce = kSplit ? 1 : kThreads / kTileColumns;
  const GemmProblem* problem;
  const uint32_t* table;
  ExpandAt at;
  ColumnCodes<Writer::kCodes> codes;

  __device__ __forceinline__ Expander(const GemmProblem& p, const uint32_t* bits)
      : problem(&p), table(bits) {}

  __device__ static int stage() { return kSplit ? 0 : column_stage(); }

  __device__ __forceinline__ void read(uint32_t stage, uint32_t tile) {
    at = ExpandAt::make<kWords>(*problem, stage, tile);
    const int column = column_of_thread(), exist = column < at.columns ? at.positions : 0;
    const int16_t* from = at.codes + column * problem->d;
    if constexpr (kSplit) {
      codes.read_each(from, exist, [](int i) { return Writer::position(i); });
    } else {
      codes.read(*problem, from, exist);
    }
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
  template <bool kOnesAreCodes>
  __device__ __forceinline__ bool write_stage(uint8_t* out) const {
    const DeviceTables& t = problem->tables;
    const PatternTable patterns{table, static_cast<uint32_t>(t.levels + 1), kWords};
    CheckedCodes checked(*problem);
    Writer::template write<kOnesAreCodes>(patterns, TableRows(t, patterns, at), 0, codes.two, 0,
                                          checked, t.length, out);
    return checked.good();
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

/// The same for longer patterns, of which a stage holds one or two positions or less: in the order
/// of lanes.
template <int kWords, bool kSigned, int kThreads>
__device__ void expand_long_stage(const GemmProblem& p, uint32_t stage, uint32_t tile,
                                  uint8_t* out) {
  using P = Pattern<kWords>;
  static_assert(kWords > 8);
  const DeviceTables& tables = p.tables;
  const auto at = ExpandAt::make<kWords>(p, stage, tile);
  auto* bits = reinterpret_cast<uint4*>(out);
#pragma unroll 4
  for (int task = threadIdx.x; task < P::kPairs * kTileColumns * 4; task += kThreads) {
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
    bits[task] = make_uint4(words[0], words[1], words[2], words[3]);
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
    terms[term_word<kWords, BOrder::lanes>(column, quad)] = four;
  }
}

}  // namespace scmp::cuda
