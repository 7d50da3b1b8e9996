// Baseline table lookups.
#pragma once

namespace scmp {
namespace SCMP_ISA {

static inline void add(uint16_t& sum, int value) { sum = static_cast<uint16_t>(sum + value); }

template <int kWidth, bool kNarrow>
static void lookup(const LookupSteps& steps, int columns, uint16_t* sums) {
  for (int i = 0; i < steps.count + steps.layers; ++i) {
    const bool layer = i >= steps.count;
    const uint8_t* row = layer ? steps.layer_table : steps.table + steps.offset[i];
    const uint8_t* index = steps.lines + int64_t{i} * 2 * columns;
    const uint8_t* flip = index + columns;
    const int row_flip = layer ? 0 : static_cast<uint8_t>(steps.flip[i]);
    for (int group = 0; group < columns; group += 64) {
      for (int c = 0; c < 32; ++c) {  // bytes 2c and 2c + 1 are columns c and 32 + c
        const int even = group + 2 * c, odd = even + 1;
        add(sums[group + c], row[index[even]] ^ flip[even] ^ row_flip);
        add(sums[group + 32 + c], row[index[odd]] ^ flip[odd] ^ row_flip);
      }
    }
  }
}

}  // namespace SCMP_ISA
}  // namespace scmp
