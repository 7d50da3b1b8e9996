// Baseline table lookups.
#pragma once

namespace scmp {
namespace SCMP_ISA {

template <int kWidth, bool kNarrow>
static void lookup(const LookupSteps& steps, int columns, uint32_t* sums) {
  for (int i = 0; i < steps.count; ++i) {
    const uint8_t* row = steps.table + steps.offset[i];
    const uint8_t* index = steps.lines + int64_t{i} * 2 * columns;
    const uint8_t* flip = index + columns;
    const auto row_flip = static_cast<uint8_t>(steps.flip[i]);
    for (int group = 0; group < columns; group += 64) {
      for (int c = 0; c < 32; ++c) {  // bytes 2c and 2c + 1 are columns c and 32 + c
        const int even = group + 2 * c, odd = even + 1;
        sums[group + c] += static_cast<uint8_t>(row[index[even]] ^ flip[even] ^ row_flip);
        sums[group + 32 + c] += static_cast<uint8_t>(row[index[odd]] ^ flip[odd] ^ row_flip);
      }
    }
  }
}

}  // namespace SCMP_ISA
}  // namespace scmp
