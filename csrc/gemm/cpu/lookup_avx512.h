// AVX-512 VBMI table lookups: 64 columns per vpermi2b.
#pragma once

#include <immintrin.h>

namespace scmp {
namespace SCMP_ISA {

template <int kWidth>
struct Row {  // one table row in registers
  __m512i part[kWidth / 64];
  explicit Row(const uint8_t* row) {
    for (int i = 0; i < kWidth / 64; ++i) part[i] = _mm512_loadu_si512(row + 64 * i);
  }
  __m512i operator()(__m512i index) const {
    const __m512i low = _mm512_permutex2var_epi8(part[0], index, part[1]);
    if constexpr (kWidth == 128) {
      return low;
    } else {
      const __m512i high = _mm512_permutex2var_epi8(part[2], index, part[3]);
      return _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
    }
  }
};

// Sums of the 64 bytes of a line in 16 bits: `all` adds words as they are (even byte + 256 * odd
// byte, modulo 2**16), `odd` the odd bytes; the even sums are all - 256 * odd.
struct WordSums {
  __m512i all, odd;
  void clear() { all = odd = _mm512_setzero_si512(); }
  // In place: GCC 12 otherwise copies every accumulator once per step, on the ports that add.
  void add(__m512i bytes) {
    const __m512i odd_bytes = _mm512_srli_epi16(bytes, 8);
    asm("vpaddw %1, %0, %0" : "+v"(all) : "v"(bytes));
    asm("vpaddw %1, %0, %0" : "+v"(odd) : "v"(odd_bytes));
  }
  void flush(uint16_t* sums) const {
    add_to(sums, _mm512_sub_epi16(all, _mm512_slli_epi16(odd, 8)));
    add_to(sums + 32, odd);
  }
  static void add_to(uint16_t* sums, __m512i words) {
    _mm512_storeu_si512(sums, _mm512_add_epi16(_mm512_loadu_si512(sums), words));
  }
};

// Kept in a register: as a memory operand it would be loaded once per 64 columns.
static inline __m512i broadcast(uint32_t word) {
  __m512i words = _mm512_set1_epi32(static_cast<int>(word));
  asm("" : "+v"(words));
  return words;
}

template <int kWidth, bool kNarrow, int kGroups>
static void lookup_groups(const LookupSteps& steps, uint16_t* sums) {
  constexpr int kColumns = 64 * kGroups, kXor3 = 0x96;
  WordSums words[kGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) words[g].clear();
  const auto value = [&](const Row<kWidth>& row, __m512i row_flip, const uint8_t* line) {
    const __m512i index = _mm512_loadu_si512(line);
    const __m512i flip = _mm512_loadu_si512(line + kColumns);
    return _mm512_ternarylogic_epi32(row(index), flip, row_flip, kXor3);
  };
  const uint8_t* line = steps.lines;
  int i = 0;
  if constexpr (kNarrow) {
    for (; i + 2 <= steps.count; i += 2, line += 4 * kColumns) {
      const Row<kWidth> first(steps.table + steps.offset[i]);
      const Row<kWidth> second(steps.table + steps.offset[i + 1]);
      const __m512i first_flip = broadcast(steps.flip[i]);
      const __m512i second_flip = broadcast(steps.flip[i + 1]);
      for (int g = 0; g < kGroups; ++g) {
        words[g].add(_mm512_add_epi8(value(first, first_flip, line + 64 * g),
                                     value(second, second_flip, line + 2 * kColumns + 64 * g)));
      }
    }
  }
  for (; i < steps.count; ++i, line += 2 * kColumns) {
    const Row<kWidth> row(steps.table + steps.offset[i]);
    const __m512i row_flip = broadcast(steps.flip[i]);
    for (int g = 0; g < kGroups; ++g) words[g].add(value(row, row_flip, line + 64 * g));
  }
  if (steps.layers > 0) {
    const Row<kWidth> row(steps.layer_table);
    const __m512i no_flip = _mm512_setzero_si512();
    for (i = 0; i < steps.layers; ++i, line += 2 * kColumns) {
      for (int g = 0; g < kGroups; ++g) words[g].add(value(row, no_flip, line + 64 * g));
    }
  }
  for (int g = 0; g < kGroups; ++g) words[g].flush(sums + 64 * g);
}

template <int kWidth, bool kNarrow>
static void lookup(const LookupSteps& steps, int columns, uint16_t* sums) {
  switch (columns / 64) {
    case 1:
      return lookup_groups<kWidth, kNarrow, 1>(steps, sums);
    case 2:
      return lookup_groups<kWidth, kNarrow, 2>(steps, sums);
    case 3:
      return lookup_groups<kWidth, kNarrow, 3>(steps, sums);
    default:
      return lookup_groups<kWidth, kNarrow, 4>(steps, sums);
  }
}

}  // namespace SCMP_ISA
}  // namespace scmp
