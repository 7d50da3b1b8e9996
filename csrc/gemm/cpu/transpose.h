// A 16 x 16 byte transpose.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace scmp {

/// out[i * out_stride + j] = rows[j][i] for i, j in 0..15.
static inline void transpose_16x16(const uint8_t* const* rows, uint8_t* out, int64_t out_stride) {
#if defined(__SSE2__)
  __m128i x[16], y[16];
  for (int j = 0; j < 16; ++j) x[j] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[j]));
  // Four rounds of interleaving line j with line j + 8 send byte (j, i) to (i, j).
  for (int round = 0; round < 4; ++round) {
    for (int j = 0; j < 8; ++j) {
      y[2 * j] = _mm_unpacklo_epi8(x[j], x[j + 8]);
      y[2 * j + 1] = _mm_unpackhi_epi8(x[j], x[j + 8]);
    }
    for (int j = 0; j < 16; ++j) x[j] = y[j];
  }
  for (int i = 0; i < 16; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * out_stride), x[i]);
  }
#else
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) out[i * out_stride + j] = rows[j][i];
  }
#endif
}

}  // namespace scmp
