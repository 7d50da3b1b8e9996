// Random number generators of stochastic computing: Sobol, LFSR and CPython's Mersenne Twister.
#pragma once

#include <cstdint>
#include <vector>

namespace scmp {

constexpr int kMinPrec = 2;
constexpr int kMaxPrec = 12;

enum class SobolSeed { q, k };

/// Default direction seeds of operand a ("q": all ones) or operand b ("k").
std::vector<int64_t> default_sobol_seed(SobolSeed type, int sc_prec);

/// The first 2**sc_prec values of a Gray-code Sobol sequence over sc_prec bits.
std::vector<uint16_t> sobol_sequence(const std::vector<int64_t>& seed, int sc_prec);

/// The first 2**sc_prec states of a Fibonacci LFSR that shifts right; taps are bit positions, 0 =
/// LSB.
std::vector<uint16_t> lfsr_sequence(int64_t seed, const std::vector<int64_t>& taps, int sc_prec);

/// 2**sc_prec draws of CPython's random.Random(seed).randint(0, 2**sc_prec - 1).
std::vector<uint16_t> true_random_sequence(uint64_t seed, int sc_prec);

}  // namespace scmp
