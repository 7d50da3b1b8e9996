#include "streams/rng.h"

#include <array>
#include <cstddef>

namespace scmp {

std::vector<int64_t> default_sobol_seed(SobolSeed type, int sc_prec) {
  std::vector<int64_t> seed(sc_prec, 1);
  if (type == SobolSeed::q) return seed;
  if (sc_prec >= 5) seed[4] = 9;
  if (sc_prec >= 7) seed[6] = 41;
  if (sc_prec == 8) seed[7] = 255;
  return seed;
}

std::vector<uint16_t> sobol_sequence(const std::vector<int64_t>& seed, int sc_prec) {
  const uint32_t base = 1u << sc_prec;
  std::vector<uint32_t> direction(sc_prec);
  for (int i = 0; i < sc_prec; ++i) {
    direction[i] = static_cast<uint32_t>((seed[i] * base) >> (i + 1));
  }
  std::vector<uint16_t> values(base);
  uint32_t value = 0;
  for (uint32_t t = 0; t < base; ++t) {
    values[t] = static_cast<uint16_t>(value);
    int lowest_zero = 0;
    while ((t >> lowest_zero) & 1u) ++lowest_zero;
    if (lowest_zero < sc_prec) value ^= direction[lowest_zero];
  }
  return values;
}

std::vector<uint16_t> lfsr_sequence(int64_t seed, const std::vector<int64_t>& taps, int sc_prec) {
  const uint32_t base = 1u << sc_prec;
  std::vector<uint16_t> values(base);
  uint32_t state = static_cast<uint32_t>(seed);
  for (uint32_t t = 0; t < base; ++t) {
    values[t] = static_cast<uint16_t>(state);
    uint32_t feedback = 0;
    for (int64_t tap : taps) feedback ^= (state >> tap) & 1u;
    state = (state >> 1) | (feedback << (sc_prec - 1));
  }
  return values;
}

namespace {

// MT19937 with CPython's seeding (init_by_array over the 32-bit words of the seed);
// Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998.
class MersenneTwister {
 public:
  explicit MersenneTwister(uint64_t seed) {
    std::vector<uint32_t> key{static_cast<uint32_t>(seed)};
    if (seed >> 32) key.push_back(static_cast<uint32_t>(seed >> 32));
    init(19650218u);
    size_t i = 1, j = 0;
    for (size_t step = kSize; step > 0; --step) {
      state_[i] = (state_[i] ^ (mix(i) * 1664525u)) + key[j] + static_cast<uint32_t>(j);
      advance(i);
      j = (j + 1) % key.size();
    }
    for (size_t step = kSize - 1; step > 0; --step) {
      state_[i] = (state_[i] ^ (mix(i) * 1566083941u)) - static_cast<uint32_t>(i);
      advance(i);
    }
    state_[0] = 0x80000000u;
  }

  uint32_t next() {
    if (index_ == kSize) twist();
    uint32_t y = state_[index_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
  }

 private:
  static constexpr size_t kSize = 624, kShift = 397;

  void init(uint32_t seed) {
    state_[0] = seed;
    for (size_t i = 1; i < kSize; ++i) {
      state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + static_cast<uint32_t>(i);
    }
  }
  uint32_t mix(size_t i) const { return state_[i - 1] ^ (state_[i - 1] >> 30); }
  void advance(size_t& i) {
    if (++i == kSize) {
      state_[0] = state_[kSize - 1];
      i = 1;
    }
  }
  void twist() {
    for (size_t i = 0; i < kSize; ++i) {
      const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kSize] & 0x7fffffffu);
      state_[i] = state_[(i + kShift) % kSize] ^ (y >> 1) ^ ((y & 1u) ? 0x9908b0dfu : 0u);
    }
    index_ = 0;
  }

  std::array<uint32_t, kSize> state_;
  size_t index_ = kSize;
};

}  // namespace

std::vector<uint16_t> true_random_sequence(uint64_t seed, int sc_prec) {
  const uint32_t base = 1u << sc_prec;
  MersenneTwister generator(seed);
  std::vector<uint16_t> values(base);
  for (auto& value : values) {
    uint32_t draw;
    do {
      draw = generator.next() >> (32 - (sc_prec + 1));  // randint draws bit_length(base) bits
    } while (draw >= base);
    value = static_cast<uint16_t>(draw);
  }
  return values;
}

}  // namespace scmp
