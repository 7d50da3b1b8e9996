// Bit patterns of the operands, and the integer corrections that undo their signs.
//
// a's word w of a position is a thermometer: bit t is [32 w + t < k]. A negative operand's bits are
// complemented, and with nu = [sign < 0]
//   sum sign_a sign_b a b = popc(alpha AND beta) - nu_a (|beta| - nu_b L) - |alpha| nu_b.
// The correction is a small s8 product beside the b1 one, per position
//   L <= 128: A = [nu_a, nu_a h2 - |alpha|],  B = [nu_b h1 - |beta|, nu_b],  h1 + h2 = L;
//   longer:   each value v in two digits, v = 64 hi + lo: A = [64 nu_a, nu_a, hi, lo] and so on.
#pragma once

#include <cstdint>

#include "quant/cuda/quantize.h"

namespace scmp::cuda {

/// Shapes that follow from the words per position (kWords: 1, 2, 3, 4, 6, or a power of two up to
/// 128).
template <int kWords>
struct Pattern {
  // Of a row and stage: as many words as 8 k256 steps take, or 4 (kWords 1) or 6 (3 and 6).
  static constexpr int kStageWords = kWords == 1 ? 32 : kWords % 3 == 0 ? 48 : 64;
  static constexpr int kPairs = kStageWords / 16;  // of k256 steps
  static constexpr int kPositions = kWords < kStageWords ? kStageWords / kWords : 1;
  static constexpr int kStagesPerPosition = kWords > kStageWords ? kWords / kStageWords : 1;
  static constexpr int kTerms = kWords <= 4 ? 2 : 4;  // s8 terms per position
  static constexpr int kTermBytes =
      kPositions * kTerms < 32 ? 32 : kPositions * kTerms;  // per row and stage
};

__device__ __forceinline__ uint32_t thermometer(int cycles, int word) {
  const int ones = max(cycles - 32 * word, 0);
  return __funnelshift_lc(0xffffffffu, 0u, ones);  // min(ones, 32) low bits
}

__device__ __forceinline__ uint32_t bytes(int b0, int b1, int b2, int b3) {
  return (b0 & 0xff) | (b1 & 0xff) << 8 | (b2 & 0xff) << 16 | static_cast<uint32_t>(b3) << 24;
}

/// The two a-terms of a position with signed enabled cycles k: nu and nu h2 - |alpha|.
__device__ __forceinline__ int a_term(int k, int length) {
  return k < 0 ? length - length / 2 - (length + k) : -k;
}

/// The b-term of a position: nu h1 - |beta|, from the ones of its magnitude in all cycles.
__device__ __forceinline__ int b_term(bool negative, int ones, int length) {
  return negative ? length / 2 - (length - ones) : -ones;
}

/// Words 4t .. 4t + 3 of a pair of k256 steps for one row of a, whose signed cycles of the stage's
/// positions are given: thermometers, complemented where negative. `half` counts the stages of a
/// position that is longer than one.
template <int kWords, bool kSigned>
__device__ __forceinline__ void a_words(const int16_t* cycles, int row, int pair, int half, int t,
                                        uint32_t (&words)[4]) {
  using P = Pattern<kWords>;
  constexpr int kGroup = kWords < 4 ? kWords : 4;  // words of one position
  const int word = 16 * pair + 4 * t;
#pragma unroll
  for (int j = 0; j < 4; j += kGroup) {
    const int i = kWords < P::kStageWords ? (word + j) / kWords : 0;
    const int within = kWords < P::kStageWords ? (word + j) % kWords : half * P::kStageWords + word;
    const int k = cycles[staged_position(row, i, P::kPositions)], on = kSigned ? abs(k) : k;
    const auto high = kSigned ? static_cast<uint32_t>(k >> 31) : 0u;  // what fills behind the ones
#pragma unroll
    for (int w = 0; w < kGroup; ++w) {
      words[j + w] = __funnelshift_lc(~high, high, max(on - 32 * (within + w), 0));
    }
  }
}

/// The two s8 terms of a of each of two positions, whose signed cycles are the halves of `two`: nu,
/// and -(k + nu h1) in eight bits, since nu h2 - |alpha| = -k - nu h1.
__device__ __forceinline__ uint32_t two_a_terms(uint32_t two, int length) {
  const uint32_t nu = two >> 15 & 0x00010001u;
  const uint32_t sum = (two & 0x00ff00ffu) + nu * static_cast<uint32_t>(length / 2);
  const uint32_t value = 0x01000100u - (sum & 0x00ff00ffu);
  return (value << 8 & 0xff00ff00u) | nu;
}

/// The four s8 terms of a of a position of a longer pattern.
__device__ __forceinline__ uint32_t four_a_terms(int k, int length) {
  const int value = a_term(k, length), negative = k < 0;
  return bytes(64 * negative, negative, value >> 6, value & 63);
}

/// Four s8 terms of a: of positions 2i, 2i + 1 (two terms each) or of position i (four).
template <int kWords>
__device__ __forceinline__ uint32_t a_terms(const int16_t* cycles, int row, int i, int length) {
  using P = Pattern<kWords>;
  if constexpr (P::kTerms == 2) {
    if (2 * i >= P::kPositions) return 0;
    const int at = staged_position(row, 2 * i, P::kPositions);
    return two_a_terms(*reinterpret_cast<const uint32_t*>(cycles + at), length);
  } else {
    if (i >= P::kPositions) return 0;
    return four_a_terms(cycles[staged_position(row, i, P::kPositions)], length);
  }
}

}  // namespace scmp::cuda
