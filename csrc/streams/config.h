// RNG configs: which generator, bit permutation and complement drives each position of a and b.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "streams/rng.h"

namespace scmp {

enum class RngType { sobol, lfsr, true_random };

struct RngSpec {
  RngType type = RngType::sobol;
  bool has_sobol_seed = false;
  std::vector<int64_t> sobol_seed;
  SobolSeed sobol_default = SobolSeed::q;
  int64_t seed = 0;           // lfsr, true_random
  std::vector<int64_t> taps;  // lfsr
};

/// A stochastic number generator: a source and how its output bits are permuted and complemented.
struct SngSpec {
  int rng = 0;
  std::vector<int64_t> scramble;  // empty: none
  bool complement = false;
  bool operator==(const SngSpec& o) const {
    return rng == o.rng && scramble == o.scramble && complement == o.complement;
  }
};

struct RngConfig {
  std::vector<RngSpec> pool;
  std::vector<SngSpec> a, b;  // one per position of the operand
  uint64_t id = 0;            // unique in this process: names the config in cache keys
  mutable std::atomic<uint32_t> checked{0};  // bit p: check_config passed for sc_prec p
};

/// Parses a JSON config: structure and types. Throws ValueError that names the offending key.
std::shared_ptr<const RngConfig> parse_config(const std::string& json);

/// Checks everything that depends on sc_prec (seed ranges, taps, permutations).
void check_config(const RngConfig& config, int sc_prec);

/// The sequence of 2**sc_prec values that an sng emits, before scrambling and rescaling.
std::vector<uint16_t> sng_sequence(const RngConfig& config, const SngSpec& sng, int sc_prec);

}  // namespace scmp
