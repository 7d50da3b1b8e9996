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

/// A stage of b: bits [pair], then the s8 terms, a multiple of 32 bytes per column.
template <int kWords>
struct BStage {
  static constexpr int kBits = kPairs * kTileColumns * 64;
  static constexpr int kTerms = kTileColumns * Pattern<kWords>::kTermBytes;
  static constexpr int kBytes = kBits + kTerms;
};

/// Fills one stage of one tile with kThreads threads (the first of the block).
template <int kWords, bool kSigned, int kThreads, BOrder kOrder>
__device__ void expand_stage(const GemmProblem& p, int64_t stage, int64_t tile, uint8_t* out) {
  using P = Pattern<kWords>;
  constexpr int kGroup = kWords < 4 ? kWords : 4;  // words of one position read together
  const DeviceTables& t = p.tables;
  const int64_t tiles = (p.m + kTileColumns - 1) / kTileColumns;
  const int64_t batch = tile / tiles, first_column = tile % tiles * kTileColumns;
  const int64_t code_stage = stage / P::kStagesPerPosition;
  const int64_t chunk = code_stage / p.a_layout.stages_per_chunk;
  const int64_t first = code_stage % p.a_layout.stages_per_chunk * P::kPositions;  // in its chunk
  const int64_t positions = chunk_columns(p, chunk) - first;
  const int half = static_cast<int>(stage % P::kStagesPerPosition);
  const int16_t* codes = b_codes_at(p, batch, chunk, first_column) + first;
  const int columns = static_cast<int>(min(int64_t{kTileColumns}, p.m - first_column));

  const auto code_of = [&](int column, int i, bool& bad) -> int {
    if (column >= columns || i >= positions) return 0;
    return checked_code(p, codes[column * p.d + i], bad);
  };
  const auto lane_of = [&](int i) -> int64_t {
    if (i >= positions) return 0;  // padding: its codes are 0
    return lane_of_position(t.lane_of, t.lanes, first + i);
  };

  // A task: four words of a column. All codes of a batch are read before the first table entry.
  constexpr int kTasks = kPairs * kTileColumns * 4, kBatch = kTasks / kThreads < 8 ? kTasks / kThreads : 8;
  constexpr int kPieces = 4 / kGroup;
  static_assert(kTasks % (kThreads * kBatch) == 0);
#pragma unroll 1
  for (int start = threadIdx.x; start < kTasks; start += kThreads * kBatch) {
    const auto column_of = [&](int n) { return (start + n * kThreads) / 4 % kTileColumns; };
    const auto word_of = [&](int n) {
      const int task = start + n * kThreads;
      return 16 * (task / (4 * kTileColumns)) + 4 * (task % 4);
    };
    const auto position_of = [](int word) { return kWords < P::kStageWords ? word / kWords : 0; };
    const auto within_of = [&](int word) {
      return kWords < P::kStageWords ? word % kWords : half * P::kStageWords + word;
    };
    int code[kBatch][kPieces];
    bool bad[kBatch] = {};
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        code[n][j] = code_of(column_of(n), position_of(word_of(n) + j * kGroup), bad[n]);
      }
    }
    uint32_t words[kBatch][4];
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const int word = word_of(n) + j * kGroup;
        const uint32_t* bits =
            t.b_bits +
            (lane_of(position_of(word)) * (t.levels + 1) + abs(code[n][j])) * int64_t{kWords} +
            within_of(word);
        if constexpr (kGroup == 4) {
          const uint4 four = __ldg(reinterpret_cast<const uint4*>(bits));
          words[n][0] = four.x;
          words[n][1] = four.y;
          words[n][2] = four.z;
          words[n][3] = four.w;
        } else {
          const uint2 two = __ldg(reinterpret_cast<const uint2*>(bits));
          words[n][2 * j] = two.x;
          words[n][2 * j + 1] = two.y;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        if (kSigned && code[n][j] < 0) {  // complement the cycles that exist
          const int within = within_of(word_of(n) + j * kGroup);
#pragma unroll
          for (int w = 0; w < kGroup; ++w) {
            words[n][j * kGroup + w] ^= thermometer(t.length, within + w);
          }
        }
      }
      if constexpr (kOrder == BOrder::lanes) {
        reinterpret_cast<uint4*>(out)[start + n * kThreads] =
            make_uint4(words[n][0], words[n][1], words[n][2], words[n][3]);
      } else {
        const int task = start + n * kThreads, pair = task / (4 * kTileColumns);
#pragma unroll
        for (int piece = 0; piece < 4; ++piece) {
          reinterpret_cast<uint32_t*>(out)[(4 * pair + piece) * 4 * kTileColumns +
                                           task % (4 * kTileColumns)] = words[n][piece];
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      if (bad[n]) mark_damaged(p, batch, first_column + column_of(n));
    }
  }
  if (!kSigned || half != 0) return;  // a position's terms count once
  // Four bytes of terms at a time: of two positions (two terms each) or of one.
  constexpr int kQuads = P::kTermBytes / 4;
  for (int task = threadIdx.x; task < kTileColumns * kQuads; task += kThreads) {
    const int column = task / kQuads, quad = task % kQuads;
    const auto value_of = [&](int code, int i) {
      const int ones = t.b_ones[lane_of(i) * (t.levels + 1) + abs(code)];
      return b_term(code < 0, ones, t.length);
    };
    uint32_t terms = 0;
    bool bad = false;  // marked above
    if constexpr (P::kTerms == 2) {
      if (2 * quad < P::kPositions) {
        const int c0 = code_of(column, 2 * quad, bad);
        const int c1 = code_of(column, 2 * quad + 1, bad);
        terms = bytes(value_of(c0, 2 * quad), c0 < 0, value_of(c1, 2 * quad + 1), c1 < 0);
      }
    } else if (quad < P::kPositions) {
      const int code = code_of(column, quad, bad), value = value_of(code, quad),
                negative = code < 0;
      terms = bytes(value >> 6, value & 63, 64 * negative, negative);
    }
    int at = task;
    if constexpr (kOrder == BOrder::pieces) {  // words 2t and 2t + 1 of 8: lane t, pieces 0 and 1
      at = ((quad / 8 * 2 + quad % 2) * kTileColumns + column) * 4 + quad % 8 / 2;
    }
    reinterpret_cast<uint32_t*>(out + BStage<kWords>::kBits)[at] = terms;
  }
}

}  // namespace scmp::cuda
