// A convolution's shapes: checked once for the operators and their kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>

#include "ops/prepared_spec.h"

namespace scmp {

using Pair = std::array<int64_t, 2>;  // along height and width

struct Geometry {
  Pair kernel, stride, dilation;
  Pair before, after;  // zero padding
  int64_t groups;

  int64_t taps() const { return kernel[0] * kernel[1]; }
  bool pointwise() const {
    return kernel == Pair{1, 1} && before == Pair{0, 0} && after == Pair{0, 0};
  }
};

struct WeightShape {
  c10::SymInt out, in_group;  // Cout, Cin / groups
  Pair kernel;
};

/// Whether every channel is a convolution of its own.
inline bool depthwise(const Geometry& g, const c10::SymInt& in, const c10::SymInt& out) {
  return g.groups > 1 && in == g.groups && out == g.groups;
}

WeightShape shape_of(const char* op, const at::Tensor& weight);
/// Of a weight that was prepared: its spec has what it lowers to.
WeightShape shape_of(const char* op, const PreparedSpec& spec);

/// Shapes, dtypes and devices; x is (B, Cin, H, W). The padding is the caller's.
Geometry check_geometry(const char* op, const at::Tensor& x, const WeightShape& weight,
                        const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                        at::IntArrayRef dilation, int64_t groups);

void check_weight(const char* op, const at::Tensor& x, const at::Tensor& weight);

/// An int or a pair, or all four sides: top, bottom, left, right.
void set_padding(const char* op, Geometry& g, at::IntArrayRef padding);
/// "same" or "valid".
void set_padding(const char* op, Geometry& g, c10::string_view padding);

/// Height (axis 0) or width of the output; ValueError where the kernel does not fit.
c10::SymInt out_size(const char* op, const at::Tensor& x, const Geometry& g, int axis);

}  // namespace scmp
