#include "quant/scheme.h"

namespace scmp {

BoundaryMap::BoundaryMap(int qmax, int levels) : table(qmax + 1) {
  for (int64_t q = 0; q <= qmax; ++q) {
    table[q] = static_cast<uint16_t>((2 * q * levels + qmax) / (2 * qmax));
  }
  while ((int64_t{levels} << (shift + 1)) + (int64_t{1} << shift) < (int64_t{1} << 32)) ++shift;
  multiplier = static_cast<uint32_t>(((int64_t{levels} << shift) + qmax / 2) / qmax);
  bias = shift > 0 ? 1u << (shift - 1) : 0u;
  for (uint32_t q = 0; q <= static_cast<uint32_t>(qmax); ++q) {
    if ((q * multiplier + bias) >> shift != table[q]) {
      multiplier = 0;
      return;
    }
  }
}

}  // namespace scmp
