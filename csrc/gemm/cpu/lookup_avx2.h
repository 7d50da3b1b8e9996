// AVX2 table lookups: a row of 128 (256) bytes is 8 (16) shuffles of 16 entries each.
#pragma once

#include <immintrin.h>

namespace scmp {
namespace SCMP_ISA {

// Entries 16 i .. 16 i + 15 answer where the index's high nibble is i: elsewhere the XORed index is
// at least 16, the saturating add lifts it to 128 or more, and the shuffle writes zero.
template <int kWidth>
static inline __m256i lookup_32(const uint8_t* row, __m256i index) {
  const __m256i lift = _mm256_set1_epi8(0x70);
  __m256i found = _mm256_setzero_si256();
  for (int i = 0; i < kWidth / 16; ++i) {
    const __m256i entries = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 16 * i)));
    const __m256i local = _mm256_adds_epu8(
        _mm256_xor_si256(index, _mm256_set1_epi8(static_cast<char>(i << 4))), lift);
    found = _mm256_or_si256(found, _mm256_shuffle_epi8(entries, local));
  }
  return found;
}

static inline void add_sums(uint16_t* sums, __m256i words) {
  auto* to = reinterpret_cast<__m256i*>(sums);
  _mm256_storeu_si256(to, _mm256_add_epi16(_mm256_loadu_si256(to), words));
}

template <int kWidth, bool kNarrow>
static void lookup(const LookupSteps& steps, int columns, uint16_t* sums) {
  for (int column = 0; column < columns; column += 32) {
    __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
    for (int i = 0; i < steps.count + steps.layers; ++i) {
      const bool layer = i >= steps.count;
      const uint8_t* row = layer ? steps.layer_table : steps.table + steps.offset[i];
      const uint8_t* index = steps.lines + int64_t{i} * 2 * columns + column;
      const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index));
      const __m256i flips = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index + columns));
      __m256i value = lookup_32<kWidth>(row, codes);
      value = _mm256_xor_si256(value, flips);
      value =
          _mm256_xor_si256(value, _mm256_set1_epi32(layer ? 0 : static_cast<int>(steps.flip[i])));
      even = _mm256_add_epi16(even, _mm256_and_si256(value, _mm256_set1_epi16(0xff)));
      odd = _mm256_add_epi16(odd, _mm256_srli_epi16(value, 8));
    }
    // Byte 2c of the 64-byte line is column c, byte 2c + 1 column 32 + c.
    uint16_t* to = sums + column / 64 * 64 + (column % 64) / 2;
    add_sums(to, even);
    add_sums(to + 32, odd);
  }
}

}  // namespace SCMP_ISA
}  // namespace scmp
