// How an operand becomes integers: ranges, scales, zero points (the arithmetic of
// docs/semantics.md).
#pragma once

#include <cstdint>
#include <vector>

namespace scmp {

enum class Rounding {
  divide,    // q = rint(x / scale): per_row
  multiply,  // q = rint(x * (1 / scale)): per_head, chunks, fused per-row quantizer
  tensor     // scale in double, q = rint(fma(x, 1 / scale, zero_point)): per_tensor
};

struct QuantScheme {
  Rounding rounding = Rounding::divide;
  bool unipolar = false;
  int qmax = 127;
};

inline int bipolar_qmax(int sc_prec) { return (1 << (sc_prec - 1)) - 1; }
inline int unipolar_qmax(int sc_prec) { return (1 << sc_prec) - 1; }

/// What turns x into q: q = clamp(rint(x / divisor + zero_point)) or the multiplied form.
struct Affine {
  float factor = 0.0f;      // divisor (divide) or multiplier (multiply, tensor)
  float zero_point = 0.0f;  // 0 when bipolar
  float scale = 0.0f;       // as the epilogue uses it; NaN marks a range that held NaN or Inf
  double scale64 = 0.0, zero_point64 = 0.0;  // per_tensor
};

/// The code on a grid of `levels` that stands for level q in 0..qmax:
/// floor((2 * q * levels + qmax) / (2 * qmax)).
struct BoundaryMap {
  std::vector<uint16_t> table;  // by level
  // Where 32 bits are enough, also (q * multiplier + bias) >> shift; else multiplier is 0.
  uint32_t multiplier = 0, bias = 0;
  int shift = 0;

  BoundaryMap(int qmax, int levels);
  uint16_t operator[](int level) const { return table[level]; }
};

}  // namespace scmp
