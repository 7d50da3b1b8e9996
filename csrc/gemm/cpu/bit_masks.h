// Predicates of up to 64 codes as bit masks.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace scmp {

/// Bit i: values[i] < 0.
static inline uint64_t negative_mask(const int16_t* values, int count) {
  uint64_t bits = 0;
  int i = 0;
#if defined(__SSE2__)
  for (; i + 16 <= count; i += 16) {
    const auto* from = reinterpret_cast<const __m128i*>(values + i);
    const __m128i bytes = _mm_packs_epi16(_mm_loadu_si128(from), _mm_loadu_si128(from + 1));
    bits |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(bytes))) << i;
  }
#endif
  for (; i < count; ++i) bits |= uint64_t{values[i] < 0} << i;
  return bits;
}

/// Bit i: |values[i]| == magnitude.
static inline uint64_t magnitude_mask(const int16_t* values, int count, int16_t magnitude) {
  const auto minus = static_cast<int16_t>(-magnitude);
  uint64_t bits = 0;
  int i = 0;
#if defined(__SSE2__)
  const __m128i plus_words = _mm_set1_epi16(magnitude), minus_words = _mm_set1_epi16(minus);
  const auto equal = [&](const __m128i* from) {
    const __m128i words = _mm_loadu_si128(from);
    return _mm_or_si128(_mm_cmpeq_epi16(words, plus_words), _mm_cmpeq_epi16(words, minus_words));
  };
  for (; i + 16 <= count; i += 16) {
    const auto* from = reinterpret_cast<const __m128i*>(values + i);
    const __m128i bytes = _mm_packs_epi16(equal(from), equal(from + 1));
    bits |= static_cast<uint64_t>(static_cast<uint32_t>(_mm_movemask_epi8(bytes))) << i;
  }
#endif
  for (; i < count; ++i) bits |= uint64_t{values[i] == magnitude || values[i] == minus} << i;
  return bits;
}

}  // namespace scmp
