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

namespace scmp::cuda {

/// Shapes that follow from the words per position (kWords, a power of two from 1 to 128).
template <int kWords>
struct Pattern {
  static constexpr int kStageWords = 64;  // per row and stage: 8 k256 steps
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

}  // namespace scmp::cuda
