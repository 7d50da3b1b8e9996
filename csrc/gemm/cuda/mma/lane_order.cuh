// The order of a stage's bits on the K axis that the wgmma kernels use. It is free as long as a and
// b agree; here a lane of a fragment has whole pairs of positions to itself, whose cycles it reads
// as words, without bank conflicts (see staged_position).
#pragma once

#include "gemm/cuda/mma/patterns.cuh"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {

/// A lane of a fragment holds kLaneWords words of each of its kEach positions of a stage, one after
/// the other, four in each pair of k256 steps. Patterns of more than four words are shared by two
/// lanes, a half each.
template <int kWords>
struct LaneOrder {
  static_assert(kWords <= 8);
  using P = Pattern<kWords>;
  static constexpr int kShare = kWords > 4 ? 2 : 1;  // lanes to a position
  static constexpr int kLaneWords = kWords / kShare;
  static constexpr int kEach = 4 * P::kPairs / kLaneWords;
  static_assert(kEach * 4 / kShare == P::kPositions);

  /// Position i of lane t = `lanes` * kShare.
  __device__ static constexpr int position(int lanes, int i) {
    return P::kPositions == 8 ? 4 * lanes + i : 8 * (i / 2) + 2 * lanes + i % 2;
  }
};

/// Whether the streams are short enough (L <= 96) for a simpler form of the terms: with k a's
/// signed cycles the correction is -k nu_b - nu_a |beta|, and the two bytes of k as int16 are k and
/// -nu_a.
template <int kWords>
constexpr bool kPlainTerms = kWords <= 3;

/// A row's signed cycles at a lane's positions of a stage in shared memory, two to a word.
template <int kWords>
struct LaneCycles {
  using Order = LaneOrder<kWords>;
  using P = Pattern<kWords>;
  const uint32_t* stage;
  int first;  // word of the first two positions

  /// `a` holds the cycles of a stage's rows.
  __device__ __forceinline__ LaneCycles(const uint8_t* a, int row, int t)
      : stage(reinterpret_cast<const uint32_t*>(a)) {
    first = row * P::kPositions / 2;
    first += P::kPositions == 8 ? t / 2 * 2 : t ^ staged_position(row, 0, P::kPositions) / 2;
  }
  /// Word q of the row, or of that `below` rows further down, a multiple of eight.
  __device__ __forceinline__ uint32_t two(int q, int below) const {
    const int word = P::kPositions == 8 ? first ^ q : first ^ 4 * q;
    return stage[word + below * P::kPositions / 2];
  }

  /// The lane's words of a pair of steps: thermometers, complemented where negative. `ones` is all
  /// ones, which the compiler must not know: complements are multiplications then, and leave the
  /// units that shift and compare, which are busier, alone.
  template <bool kSigned>
  __device__ __forceinline__ void words(int pair, int below, int t, uint32_t ones,
                                        uint32_t (&out)[4]) const {
    const auto position = [&](int j) { return (4 * pair + j) / Order::kLaneWords; };
    const int first_q = position(0) / 2, last_q = position(3) / 2;
    uint32_t raw[2];
    raw[0] = two(first_q, below);
    raw[1] = last_q == first_q ? raw[0] : two(last_q, below);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int i = position(j), word = (4 * pair + j) % Order::kLaneWords;
      const uint32_t mine = raw[i / 2 - first_q];
      const int k = i % 2 == 0 ? static_cast<int16_t>(mine) : static_cast<int>(mine) >> 16;
      // What fills behind the ones.
      const uint32_t high = !kSigned ? 0u : i % 2 == 0 ? signs<0x9999>(mine) : signs<0xbbbb>(mine);
      int on = kSigned ? abs(k) : k;
      if (Order::kShare > 1) on -= 32 * Order::kLaneWords * (t % 2);
      if (Order::kShare > 1 || word > 0) on = max(on - 32 * word, 0);
      out[j] = __funnelshift_lc(kSigned ? high * ones + ones : ~0u, high, on);
    }
  }

  // Four times the sign of one of the bytes.
  template <int kSelector>
  __device__ __forceinline__ static uint32_t signs(uint32_t x) {
    uint32_t out;
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(out) : "r"(x), "n"(kSelector));
    return out;
  }

  /// Word i of the lane's terms: those of two positions, or of one of a longer pattern.
  __device__ __forceinline__ uint32_t terms(int i, int below, int t, int length) const {
    if constexpr (kPlainTerms<kWords>) {
      return two(i, below);
    } else if constexpr (P::kTerms == 2) {
      return two_a_terms(two(i, below), length);
    } else {
      const uint32_t own = two(t % 2, below);
      return four_a_terms(i == 0 ? static_cast<int16_t>(own) : static_cast<int>(own) >> 16, length);
    }
  }
};

}  // namespace scmp::cuda
