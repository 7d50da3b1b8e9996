// b's codes to bit patterns in the order of words, for rows that need only prefixes of the streams.
#pragma once

#include "gemm/cuda/tile/expand.cuh"

namespace scmp::cuda {

/// As Expander, bipolar, in pieces and in WordOrder, with the terms of every prefix.
template <int kWords, int kThreads>
struct WordExpander {
  static_assert(kThreads % kTileColumns == 0);
  using Order = WordOrder<kWords>;
  static constexpr int kPrefixes = Order::kPrefixes, kStep = Order::kPrefixWords;
  using Stage = BStage<kWords, kPrefixes>;
  static constexpr int kStagesAtOnce = kThreads / kTileColumns;
  const GemmProblem* problem;
  const uint32_t* table;
  ExpandAt at;
  ColumnCodes<kWords> codes;

  __device__ __forceinline__ WordExpander(const GemmProblem& p, const uint32_t* bits)
      : problem(&p), table(bits) {}

  __device__ static int stage() { return column_stage(); }

  __device__ __forceinline__ void read(uint32_t stage, uint32_t tile) {
    at = ExpandAt::make<kWords>(*problem, stage, tile);
    codes.read(*problem, at, column_of_thread());
  }

  /// False where a code was damaged: then mark() the column.
  __device__ __forceinline__ bool write(uint8_t* out) const {
    const DeviceTables& t = problem->tables;
    const TableRows rows(t, at);
    const uint32_t needs = problem->row_needs[at.batch];  // what no row needs is not written
    CheckedCodes checked(*problem);
#pragma unroll
    for (int g = 0; g < Order::kGroups; ++g) {
      uint32_t quads[kPrefixes][4] = {};
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {  // a group's even positions, then its odd ones
        uint32_t words[4][kWords];
#pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
          const int i = Order::position(g, lane) + odd;
          const auto code = checked.at(codes.two, i);
          load_pattern(table + rows.of(i) + code.magnitude * kWords, words[lane]);
          int ones = 0;
#pragma unroll
          for (int prefix = 0; prefix < kPrefixes; ++prefix) {
#pragma unroll
            for (int w = prefix * kStep; w < (prefix + 1) * kStep; ++w) {
              ones += __popc(words[lane][w]);
            }
            const int value = b_term(code.sign < 0, ones, min(t.length, (prefix + 1) * kStep * 32));
            if constexpr (kWords == 8) {
              quads[prefix][lane] = bytes(value >> 6, value & 63, -64 * code.sign, -code.sign);
            } else {
              quads[prefix][lane] |= ((value & 0xff) | (code.sign & 0x100)) << 16 * odd;
            }
          }
#pragma unroll
          for (int w = 0; w < kWords; ++w) {  // complement the cycles that exist
            words[lane][w] ^= code.sign & thermometer(t.length, w);
          }
        }
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          if (needs >> w / 2 * 2 == 0) break;
          const int piece = 4 * (g * Order::kGroupPairs + w / 2) + w % 2 * 2 + odd;
          reinterpret_cast<uint4*>(out)[piece * kTileColumns + column_of_thread()] =
              make_uint4(words[0][w], words[1][w], words[2][w], words[3][w]);
        }
        if (kWords == 8 || odd == 1) store_terms(out, g, odd, needs, quads);
      }
    }
    return checked.good();
  }
  __device__ void mark() const {
    mark_damaged(*problem, at.batch, at.first_column + column_of_thread());
  }

 private:
  // Of 8 words the four of a group's even or odd positions; else of all its positions, two each.
  __device__ __forceinline__ static void store_terms(uint8_t* out, int g, int odd, uint32_t needs,
                                                     const uint32_t (&quads)[kPrefixes][4]) {
    const int column = column_of_thread();
#pragma unroll
    for (int prefix = 0; prefix < kPrefixes; ++prefix) {
      if ((needs >> prefix * kStep & ((1u << kStep) - 1)) == 0) continue;
      auto* to = reinterpret_cast<uint32_t*>(out + prefix * Stage::kTerms + Stage::kBits);
      const uint32_t(&q)[4] = quads[prefix];
      if constexpr (kWords == 8) {
        *reinterpret_cast<uint4*>(to + term_word<kWords, BOrder::pieces>(column, odd)) =
            make_uint4(q[0], q[1], q[2], q[3]);
      } else {
        auto* even = to + term_word<kWords, BOrder::pieces>(column, 4 * g);
        auto* uneven = to + term_word<kWords, BOrder::pieces>(column, 4 * g + 1);
        *reinterpret_cast<uint2*>(even) = make_uint2(q[0], q[2]);
        *reinterpret_cast<uint2*>(uneven) = make_uint2(q[1], q[3]);
      }
    }
  }
};

}  // namespace scmp::cuda
