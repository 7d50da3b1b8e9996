#include "autograd/conv2d_gradients.h"

#include <ATen/ops/col2im.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros_like.h>

#include <tuple>

#include "autograd/straight_through.h"
#include "conv/lowering.h"

namespace scmp {
namespace {

constexpr const char* kOp = "sc_conv2d";

// x's part of what was padded.
at::Tensor without_padding(const at::Tensor& padded, const at::Tensor& x, const Geometry& g) {
  return padded.slice_symint(2, g.before[0], g.before[0] + x.sym_size(2))
      .slice_symint(3, g.before[1], g.before[1] + x.sym_size(3));
}

// torch's gradient of conv2d, of x or of the weight, in the dtype that it is computed in.
at::Tensor torch_gradient(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                          const Geometry& g, at::ScalarType wide, bool of_weight) {
  at::Tensor input = x.to(wide);
  const bool even = g.before == g.after;
  if (!even) {  // torch's takes one padding for both sides
    input = at::constant_pad_nd(input, {g.before[1], g.after[1], g.before[0], g.after[0]});
  }
  const auto [grad_x, grad_weight, grad_bias] = at::convolution_backward(
      grad.to(wide), input, weight.to(wide), std::nullopt, g.stride, even ? g.before : Pair{0, 0},
      g.dilation, /*transposed=*/false, {0, 0}, g.groups, {!of_weight, of_weight, false});
  if (of_weight) return grad_weight;
  return even ? grad_x : without_padding(grad_x, x, g);
}

// (B, positions, groups * columns) as (groups, B * positions, columns).
at::Tensor by_group(const at::Tensor& rows, const Geometry& g) {
  return rows
      .reshape_symint({rows.sym_size(0) * rows.sym_size(1), g.groups, rows.sym_size(2) / g.groups})
      .transpose(0, 1);
}

// Images (B, C, Hout, Wout) likewise.
at::Tensor images_by_group(const at::Tensor& images, const Geometry& g) {
  return by_group(images.flatten(2).transpose(1, 2), g);
}

at::Tensor lowered_input_gradient(const at::Tensor& grad, const at::Tensor& x,
                                  const at::Tensor& weight, const Geometry& g, at::ScalarType wide,
                                  const at::Tensor& counted) {
  const c10::SymInt columns = weight.sym_size(1) * g.taps();
  const at::Tensor b =
      weight.to(wide).reshape_symint({g.groups, weight.sym_size(0) / g.groups, columns});
  const at::Tensor rows = only_counted(at::matmul(images_by_group(grad.to(wide), g), b), counted);
  const at::Tensor by_image = rows.transpose(0, 1).reshape_symint(
      {x.sym_size(0), grad.sym_size(2) * grad.sym_size(3), g.groups * columns});
  const c10::SymInt padded[] = {x.sym_size(2) + g.before[0] + g.after[0],
                                x.sym_size(3) + g.before[1] + g.after[1]};
  return without_padding(
      at::col2im_symint(by_image.transpose(1, 2), padded, g.kernel, g.dilation, {0, 0}, g.stride),
      x, g);
}

at::Tensor lowered_weight_gradient(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& weight, const Geometry& g, at::ScalarType wide,
                                   const at::Tensor& counted) {
  const at::Tensor a = only_counted(by_group(lower(x.to(wide), g), g), counted);
  return at::matmul(images_by_group(grad.to(wide), g).transpose(1, 2), a)
      .reshape_symint(weight.sym_sizes());
}

bool nothing(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight) {
  return grad.sym_numel() == 0 || x.sym_numel() == 0 || weight.sym_numel() == 0;
}

}  // namespace

at::Tensor conv2d_input_gradient(const at::Tensor& grad, const at::Tensor& x,
                                 const at::Tensor& weight, const Geometry& g,
                                 const at::Tensor& counted) {
  if (nothing(grad, x, weight)) return at::zeros_like(x);
  return once_differentiable(kOp, grad, weight, [&] {
    const at::ScalarType wide = wide_type(weight);
    const at::Tensor gradient = counted.defined()
                                    ? lowered_input_gradient(grad, x, weight, g, wide, counted)
                                    : torch_gradient(grad, x, weight, g, wide, /*of_weight=*/false);
    return gradient.to(x.scalar_type());
  });
}

at::Tensor conv2d_weight_gradient(const at::Tensor& grad, const at::Tensor& x,
                                  const at::Tensor& weight, const Geometry& g,
                                  const at::Tensor& counted) {
  if (nothing(grad, x, weight)) return at::zeros_like(weight);
  return once_differentiable(kOp, grad, x, [&] {
    const at::ScalarType wide = wide_type(x);
    const at::Tensor gradient = counted.defined()
                                    ? lowered_weight_gradient(grad, x, weight, g, wide, counted)
                                    : torch_gradient(grad, x, weight, g, wide, /*of_weight=*/true);
    return gradient.to(weight.scalar_type());
  });
}

}  // namespace scmp
