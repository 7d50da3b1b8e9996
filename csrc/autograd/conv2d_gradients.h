// The straight-through gradients of a convolution's products.
#pragma once

#include "conv/geometry.h"

namespace scmp {

/// Of x (B, Cin, H, W), in its dtype, for the gradient `grad` (B, Cout, Hout, Wout) of the products
/// with `weight` (Cout, Cin / groups, kh, kw), at no less than float32: torch's own of conv2d;
/// where `counted` is defined (a bool that broadcasts to a group's lowered rows) that of the
/// lowered input's elements that it has true. Once differentiable.
at::Tensor conv2d_input_gradient(const at::Tensor& grad, const at::Tensor& x,
                                 const at::Tensor& weight, const Geometry& g,
                                 const at::Tensor& counted);

/// Of the weight, in its dtype, likewise.
at::Tensor conv2d_weight_gradient(const at::Tensor& grad, const at::Tensor& x,
                                  const at::Tensor& weight, const Geometry& g,
                                  const at::Tensor& counted);

}  // namespace scmp
