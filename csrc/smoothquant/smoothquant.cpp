// SmoothQuant (Xiao et al., ICML 2023): moving the range of activations into the weights. Plain
// tensor arithmetic, the same on every device.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>

#include "ops/tensor_checks.h"

namespace scmp {
namespace {

// The largest magnitude of each of the last dimension's channels; 0 over nothing.
at::Tensor channel_amax(const at::Tensor& x) {
  if (x.sym_numel() == 0) return at::zeros_symint({x.sym_size(-1)}, x.options());
  return x.reshape_symint({-1, x.sym_size(-1)}).abs().amax(0);
}

void check_channels(const char* op, const char* name, const at::Tensor& x, const char* like_name,
                    const at::Tensor& like) {
  TORCH_CHECK_VALUE(x.dim() == 1 && x.sym_size(0) == like.sym_size(-1), op, ": ", name,
                    " must have shape (D,) = (", like.sym_size(-1), ",), got ", x.sym_sizes());
  check_dtype(op, name, x);
  TORCH_CHECK_VALUE(x.device() == like.device(), op, ": ", name, " must be on ", like_name,
                    "'s device ", like.device(), ", got ", x.device());
}

void check_rows(const char* op, const char* name, const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.dim() >= 1, op, ": ", name, " must have shape (..., D), got a scalar");
  check_dtype(op, name, x);
}

at::Tensor accumulate_act_scales(const at::Tensor& x, const std::optional<at::Tensor>& running) {
  const char* op = "accumulate_act_scales";
  check_rows(op, "x", x);
  const at::Tensor now = channel_amax(x);
  if (!running || !running->defined()) return now;
  check_channels(op, "running", *running, "x", x);
  TORCH_CHECK_VALUE(running->scalar_type() == x.scalar_type(), op, ": running must be ",
                    x.scalar_type(), " as x, got ", running->scalar_type());
  return at::maximum(now, *running);
}

at::Tensor compute_smooth_scales(const at::Tensor& act, const at::Tensor& weight, double alpha,
                                 double eps) {
  const char* op = "compute_smooth_scales";
  check_rank(op, "weight", weight, 2, 2);
  check_dtype(op, "weight", weight);
  check_channels(op, "act", act, "weight", weight);
  TORCH_CHECK_VALUE(alpha >= 0.0 && alpha <= 1.0, op, ": alpha must be in [0, 1], got ", alpha);
  TORCH_CHECK_VALUE(eps > 0.0 && std::isfinite(eps), op, ": eps must be positive and finite, got ",
                    eps);
  const at::Tensor a = act.to(at::kDouble).clamp_min(eps);
  const at::Tensor w = channel_amax(weight).to(at::kDouble).clamp_min(eps);
  return (a.pow(alpha) / w.pow(1.0 - alpha)).clamp_min(eps).to(at::kFloat);
}

at::Tensor apply_smoothing_offline(const at::Tensor& weight, const at::Tensor& s) {
  const char* op = "apply_smoothing_offline";
  check_rows(op, "weight", weight);
  check_channels(op, "s", s, "weight", weight);
  return weight * s.to(weight.scalar_type());
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> apply_smoothing(const at::Tensor& a, const at::Tensor& b,
                                                   const at::Tensor& s) {
  const char* op = "apply_smoothing";
  check_rows(op, "a", a);
  check_rows(op, "b", b);
  check_channels(op, "s", s, "a", a);
  check_channels(op, "s", s, "b", b);
  return {a / s.to(a.scalar_type()), b * s.to(b.scalar_type())};
}

namespace {

void register_arithmetic(torch::Library& m) {
  m.impl("accumulate_act_scales", accumulate_act_scales);
  m.impl("compute_smooth_scales", compute_smooth_scales);
  m.impl("apply_smoothing_offline", apply_smoothing_offline);
}

void register_all(torch::Library& m) {
  register_arithmetic(m);
  m.impl("apply_smoothing", apply_smoothing);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CPU, m) { register_all(m); }
TORCH_LIBRARY_IMPL(scmp, CUDA, m) { register_all(m); }
TORCH_LIBRARY_IMPL(scmp, Meta, m) { register_all(m); }
// Differentiable as the arithmetic that they are; apply_smoothing see autograd/smoothing.cpp.
TORCH_LIBRARY_IMPL(scmp, Autograd, m) { register_arithmetic(m); }

}  // namespace scmp
