#include "streams/environment.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "common/error.h"

namespace scmp {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool flag(const char* name, bool unset) {
  const std::string value = variable(name);
  if (value.empty()) return unset;
  require(value == "0" || value == "1", name, " must be 0 or 1, got ", in_quotes(value));
  return value == "1";
}

int64_t mask_count() {
  const std::string value = variable("SC_SCRAMBLE_MASKS");
  if (value.empty()) return 64;
  for (int64_t masks = 1; masks <= (int64_t{1} << 30); masks *= 2) {
    if (value == std::to_string(masks)) return masks;
  }
  throw ValueError(
      concat("SC_SCRAMBLE_MASKS must be a power of two from 1 to 2**30, got ", in_quotes(value)));
}

ScrambleMode scramble_mode() {
  const std::string value = variable("SC_OWEN_MODE");
  if (value.empty() || value == "bitrev") return ScrambleMode::bitrev;
  if (value == "counter") return ScrambleMode::counter;
  if (value == "off") return ScrambleMode::off;
  if (value == "random") return ScrambleMode::random;
  throw ValueError(
      concat("SC_OWEN_MODE must be bitrev, counter, random or off, got ", in_quotes(value)));
}

std::vector<uint16_t> random_permutation(int size) {
  std::vector<uint16_t> values(size);
  std::iota(values.begin(), values.end(), uint16_t{0});
  uint64_t state = 0x5A5A5A5A;  // splitmix64 (Steele, Lea, Flood; OOPSLA 2014)
  for (int i = size - 1; i >= 1; --i) {
    uint64_t z = (state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    std::swap(values[i], values[z % static_cast<uint64_t>(i + 1)]);
  }
  return values;
}

}  // namespace

ScrambleSettings read_environment() {
  ScrambleSettings settings;
  settings.masks = mask_count();
  settings.mode = scramble_mode();
  if (flag("SC_DISABLE_OWEN", false)) settings.mode = ScrambleMode::off;
  settings.rescaled_grid = flag("SC_SCRAMBLE_RESCALE", true);
  return settings;
}

bool read_sync_checks() { return flag("SCMP_SYNC_CHECKS", false); }

std::vector<uint16_t> scramble_masks(const ScrambleSettings& settings, int sc_prec) {
  if (settings.mode == ScrambleMode::off) return {0};
  const int base = 1 << sc_prec;
  const int count = static_cast<int>(std::min<int64_t>(settings.masks, base));
  std::vector<uint16_t> masks(count);
  if (settings.mode == ScrambleMode::random) {
    const auto permutation = random_permutation(base);
    std::copy_n(permutation.begin(), count, masks.begin());
    return masks;
  }
  for (int j = 0; j < count; ++j) {
    int mask = j;
    if (settings.mode == ScrambleMode::bitrev) {
      mask = 0;
      for (int bit = 0; bit < sc_prec; ++bit) mask |= ((j >> bit) & 1) << (sc_prec - 1 - bit);
    }
    masks[j] = static_cast<uint16_t>(mask);
  }
  return masks;
}

}  // namespace scmp
