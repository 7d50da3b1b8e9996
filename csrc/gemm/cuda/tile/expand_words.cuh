// b's codes to bit patterns in the order of words, for rows that need only prefixes of the streams.
#pragma once

#include "gemm/cuda/tile/expand.cuh"

namespace scmp::cuda {

/// As Expander, bipolar, in pieces and in WordOrder, with the terms of every prefix. A thread takes
/// whole patterns of two positions per group.
template <int kWords, int kThreads>
struct WordExpander {
  using Order = WordOrder<kWords>;
  static constexpr int kPrefixes = Order::kPrefixes;
  using Stage = BStage<kWords, kPrefixes>;
  static_assert(kTileColumns * 4 % kThreads == 0);
  static constexpr int kTasks = kTileColumns * 4 / kThreads;
  const GemmProblem* problem;
  const uint32_t* table;
  ExpandAt at;
  int16_t stored[kTasks][Order::kGroups][2];  // codes, to be checked

  __device__ WordExpander(const GemmProblem& p, const uint32_t* bits) : problem(&p), table(bits) {}

  __device__ static int column_of(int task) { return (threadIdx.x + task * kThreads) / 4; }

  __device__ void read(uint32_t stage, uint32_t tile) {
    const GemmProblem& p = *problem;
    at = ExpandAt::make<kWords>(p, stage, tile);
    const bool pairs = p.d % 2 == 0 && p.chunk % 2 == 0;  // both neighbours exist or none does
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
#pragma unroll
      for (int g = 0; g < Order::kGroups; ++g) {
        const int column = column_of(task), position = Order::position(g, threadIdx.x % 4);
        if (pairs) {
          const bool exists = column < at.columns && position < at.positions;
          const uint32_t two =
              exists ? *reinterpret_cast<const uint32_t*>(at.codes + column * p.d + position) : 0u;
          stored[task][g][0] = static_cast<int16_t>(two);
          stored[task][g][1] = static_cast<int16_t>(two >> 16);
        } else {
          stored[task][g][0] = static_cast<int16_t>(at.code(p, column, position));
          stored[task][g][1] = static_cast<int16_t>(at.code(p, column, position + 1));
        }
      }
    }
  }

  __device__ void write(uint8_t* out) const {
#pragma unroll
    for (int task = 0; task < kTasks; ++task) {
      bool bad = false;
#pragma unroll
      for (int g = 0; g < Order::kGroups; ++g) write_group(task, g, out, bad);
      if (bad) mark_damaged(*problem, at.batch, at.first_column + column_of(task));
    }
  }

 private:
  // One position's pattern.
  __device__ static void load_words(const uint32_t* pattern, uint32_t (&words)[kWords]) {
    if constexpr (kWords == 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(pattern);
      words[0] = two.x;
      words[1] = two.y;
    } else {
#pragma unroll
      for (int w = 0; w < kWords; w += 4) {
        const uint4 four = reinterpret_cast<const uint4*>(pattern)[w / 4];
        words[w] = four.x;
        words[w + 1] = four.y;
        words[w + 2] = four.z;
        words[w + 3] = four.w;
      }
    }
  }

  __device__ void write_group(int task, int g, uint8_t* out, bool& bad) const {
    const GemmProblem& p = *problem;
    const int length = p.tables.length;
    const int column = column_of(task), t = threadIdx.x % 4, position = Order::position(g, t);
    int code[2];
    uint32_t words[2][kWords];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      code[j] = checked_code(p, stored[task][g][j], bad);
      load_words(at.pattern(p.tables, table, position + j, code[j]), words[j]);
    }
    const uint32_t needs = p.row_needs[at.batch];  // what no row needs is not written
#pragma unroll
    for (int prefix = 0; prefix < kPrefixes; ++prefix) {
      constexpr int kStep = kWords / kPrefixes;
      if ((needs >> prefix * kStep & ((1u << kStep) - 1)) == 0) continue;
      const int end = min(length, (prefix + 1) * kStep * 32);
      int term[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int ones = 0;
#pragma unroll
        for (int w = 0; w < (prefix + 1) * kStep; ++w) ones += __popc(words[j][w]);
        term[j] = b_term(code[j] < 0, ones, end);
      }
      write_terms(out + prefix * Stage::kTerms, column, position, code, term);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {  // complement the cycles that exist
      if (code[j] >= 0) continue;
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[j][w] ^= thermometer(length, w);
    }
#pragma unroll
    for (int w = 0; w < kWords; w += 2) {
      if (needs >> w == 0) break;
      const uint32_t four[4] = {words[0][w], words[1][w], words[0][w + 1], words[1][w + 1]};
      store_words<kWords, BOrder::pieces>(out, g * Order::kGroupPairs + w / 2, column, t, four);
    }
  }

  __device__ static void write_terms(uint8_t* out, int column, int position, const int (&code)[2],
                                     const int (&term)[2]) {
    auto* terms = reinterpret_cast<uint32_t*>(out + Stage::kBits);
    const int first = code[0] < 0, second = code[1] < 0;
    if constexpr (kWords < 8) {
      terms[term_word<kWords, BOrder::pieces>(column, position / 2)] =
          bytes(term[0], first, term[1], second);
    } else {
      terms[term_word<kWords, BOrder::pieces>(column, position)] =
          bytes(term[0] >> 6, term[0] & 63, 64 * first, first);
      terms[term_word<kWords, BOrder::pieces>(column, position + 1)] =
          bytes(term[1] >> 6, term[1] & 63, 64 * second, second);
    }
  }
};

}  // namespace scmp::cuda
