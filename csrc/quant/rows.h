// Row kernels of the quantizers. The source is compiled once per instruction set (SCMP_ISA).
#pragma once

#include <cstdint>

#include "cpu/isa.h"
#include "quant/scheme.h"

namespace scmp {

constexpr uint32_t kNonFiniteBits = 0x7f800000u;  // |x| bits at or above: Inf or NaN

struct RowKernels {
  /// Largest bit pattern of |x|: at least kNonFiniteBits when the row holds Inf or NaN, else amax.
  uint32_t (*absmax_bits)(const float* x, int64_t count);
  /// Extremes of a finite row, count >= 1 (any answer when the row holds NaN).
  void (*minmax)(const float* x, int64_t count, float* low, float* high);
  /// q = clamp(rint(x / divisor), -qmax, qmax), keeping the sign of zero.
  void (*levels_divide)(const float* x, int64_t count, float divisor, int qmax, float* q);
  /// q = clamp(rint(x * factor), -qmax, qmax), keeping the sign of zero.
  void (*levels_multiply)(const float* x, int64_t count, float factor, int qmax, float* q);
  /// q = clamp(rint(x / divisor + zero_point), 0, qmax), never -0.
  void (*levels_divide_zero)(const float* x, int64_t count, float divisor, float zero_point,
                             int qmax, float* q);
  /// q = clamp(rint(fma(x, factor, zero_point)), 0, qmax), never -0.
  void (*levels_fma)(const float* x, int64_t count, float factor, float zero_point, int qmax,
                     float* q);
  /// codes = sign(q) * boundary[|q|].
  void (*encode)(const float* q, int64_t count, const BoundaryMap& boundary, int16_t* codes);
  /// Exact sum of integral q.
  int64_t (*sum)(const float* q, int64_t count);
};

const RowKernels& row_kernels(Isa isa);

namespace scalar {
extern const RowKernels kRowKernels;
}
namespace avx2 {
extern const RowKernels kRowKernels;
}
namespace avx512 {
extern const RowKernels kRowKernels;
}

}  // namespace scmp
