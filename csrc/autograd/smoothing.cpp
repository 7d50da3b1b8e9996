// apply_smoothing stays one operator in traced graphs, where compilers would otherwise divide by
// rules of their own; it is differentiable as the arithmetic that it is.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <tuple>

#include "smoothquant/smoothquant.h"

namespace scmp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

using Smoothed = std::tuple<at::Tensor, at::Tensor>;

Smoothed call(const at::Tensor& a, const at::Tensor& b, const at::Tensor& s) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("scmp::apply_smoothing", "")
          .typed<Smoothed(const at::Tensor&, const at::Tensor&, const at::Tensor&)>();
  return op.call(a, b, s);
}

Smoothed call_below_autograd(const at::Tensor& a, const at::Tensor& b, const at::Tensor& s) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return call(a, b, s);
}

// Each output depends on its own operand and the scales alone.
struct ApplySmoothing : Function<ApplySmoothing> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b,
                               const at::Tensor& s) {
    ctx->set_materialize_grads(false);
    // The gradient of s alone needs the operands.
    const bool of_s = s.requires_grad();
    ctx->save_for_backward({s, of_s ? a : at::Tensor(), of_s ? b : at::Tensor()});
    const auto [smooth_a, smooth_b] = call_below_autograd(a, b, s);
    if (!of_s && !a.requires_grad()) ctx->mark_non_differentiable({smooth_a});
    if (!of_s && !b.requires_grad()) ctx->mark_non_differentiable({smooth_b});
    return {smooth_a, smooth_b};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &s = saved[0], &a = saved[1], &b = saved[2];
    at::Tensor grad_a, grad_b, grad_s;
    if (grads[0].defined() || grads[1].defined()) {
      std::tie(grad_a, grad_b) = call(or_zeros(grads[0], s), or_zeros(grads[1], s), s);
    }
    if (!grads[0].defined()) grad_a.reset();
    if (!grads[1].defined()) grad_b.reset();
    const auto add_by_channel = [&](const at::Tensor& x) {
      const at::Tensor sum = at::sum_to(x, s.sym_sizes()).to(s.scalar_type());
      grad_s = grad_s.defined() ? grad_s + sum : sum;
    };
    if (a.defined() && grad_a.defined()) add_by_channel(-grad_a * (a / s.to(a.scalar_type())));
    if (b.defined() && grad_b.defined()) add_by_channel(grads[1] * b);
    return {grad_a, grad_b, grad_s};
  }

 private:
  static at::Tensor or_zeros(const at::Tensor& grad, const at::Tensor& s) {
    return grad.defined() ? grad : at::zeros_symint(s.sym_sizes(), s.options());
  }
};

Smoothed apply_smoothing_autograd(const at::Tensor& a, const at::Tensor& b, const at::Tensor& s) {
  // Forward-mode derivatives and torch.func's transforms see the arithmetic.
  if (a._fw_grad(0).defined() || b._fw_grad(0).defined() || s._fw_grad(0).defined() ||
      at::functorch::maybeCurrentDynamicLayer().has_value()) {
    return apply_smoothing(a, b, s);
  }
  if (at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad() || s.requires_grad())) {
    const variable_list out = ApplySmoothing::apply(a, b, s);
    return {out[0], out[1]};
  }
  return call_below_autograd(a, b, s);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Autograd, m) { m.impl("apply_smoothing", apply_smoothing_autograd); }

}  // namespace scmp
