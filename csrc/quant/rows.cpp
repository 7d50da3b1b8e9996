// Compiled once per instruction set: plain loops that the compiler vectorises. No standard library
// templates here, so that no function built for a newer CPU can replace a baseline one at link
// time.
#include "quant/rows.h"

#include "common/float_ops.h"

namespace scmp {
namespace SCMP_ISA {
namespace {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(int32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

inline float clamp(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

uint32_t absmax_bits(const float* x, int64_t count) {
  int32_t best = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<int32_t>(bits_of(x[i]) & 0x7fffffffu);
    best = bits > best ? bits : best;
  }
  return static_cast<uint32_t>(best);
}

// Float order as integer order: flip the magnitude bits of negative numbers. Its own inverse.
inline int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

void minmax(const float* x, int64_t count, float* low, float* high) {
  int32_t least = INT32_MAX, most = INT32_MIN;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t key = ordered(static_cast<int32_t>(bits_of(x[i])));
    least = key < least ? key : least;
    most = key > most ? key : most;
  }
  *low = float_of(ordered(least));
  *high = float_of(ordered(most));
}

void levels_divide(const float* x, int64_t count, float divisor, int qmax, float* q) {
  const float top = static_cast<float>(qmax);
  for (int64_t i = 0; i < count; ++i) q[i] = clamp(__builtin_rintf(x[i] / divisor), -top, top);
}

void levels_multiply(const float* x, int64_t count, float factor, int qmax, float* q) {
  const float top = static_cast<float>(qmax);
  for (int64_t i = 0; i < count; ++i) q[i] = clamp(__builtin_rintf(x[i] * factor), -top, top);
}

void levels_divide_zero(const float* x, int64_t count, float divisor, float zero_point, int qmax,
                        float* q) {
  const float top = static_cast<float>(qmax);
  for (int64_t i = 0; i < count; ++i) {
    q[i] = clamp(__builtin_rintf(x[i] / divisor + zero_point), 0.0f, top) + 0.0f;
  }
}

void levels_fma(const float* x, int64_t count, float factor, float zero_point, int qmax, float* q) {
  const float top = static_cast<float>(qmax);
  for (int64_t i = 0; i < count; ++i) {
    q[i] = clamp(__builtin_rintf(__builtin_fmaf(x[i], factor, zero_point)), 0.0f, top) + 0.0f;
  }
}

void encode(const float* q, int64_t count, const BoundaryMap& boundary, int16_t* codes) {
  const uint32_t multiplier = boundary.multiplier, bias = boundary.bias;
  if (multiplier != 0) {
    const int shift = boundary.shift;
    for (int64_t i = 0; i < count; ++i) {
      const auto level = static_cast<int32_t>(q[i]);
      const int32_t sign = level >> 31;
      const auto magnitude = static_cast<uint32_t>((level ^ sign) - sign);
      const auto code = static_cast<int32_t>((magnitude * multiplier + bias) >> shift);
      codes[i] = static_cast<int16_t>((code ^ sign) - sign);
    }
    return;
  }
  const uint16_t* table = boundary.table.data();
  for (int64_t i = 0; i < count; ++i) {
    const auto level = static_cast<int32_t>(q[i]);
    const int32_t sign = level >> 31;
    const int32_t code = table[(level ^ sign) - sign];
    codes[i] = static_cast<int16_t>((code ^ sign) - sign);
  }
}

int64_t sum(const float* q, int64_t count) {
  int64_t total = 0;
  for (int64_t begin = 0; begin < count; begin += 1 << 16) {
    const int64_t end = begin + (1 << 16) < count ? begin + (1 << 16) : count;
    int32_t part = 0;  // at most 2**16 * 4095
    for (int64_t i = begin; i < end; ++i) part += static_cast<int32_t>(q[i]);
    total += part;
  }
  return total;
}

}  // namespace

const RowKernels kRowKernels = {absmax_bits,        minmax,     levels_divide, levels_multiply,
                                levels_divide_zero, levels_fma, encode,        sum};

}  // namespace SCMP_ISA
}  // namespace scmp
