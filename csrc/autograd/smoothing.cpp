// apply_smoothing stays one operator in traced graphs, where compilers would otherwise divide by
// rules of their own; it is differentiable as the arithmetic that it is.
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/functorch/DynamicLayer.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

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

struct ApplySmoothing : Function<ApplySmoothing> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b,
                               const at::Tensor& s) {
    ctx->save_for_backward({a, b, s});
    const auto [smooth_a, smooth_b] = call_below_autograd(a, b, s);
    return {smooth_a, smooth_b};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], &s = saved[2];
    const auto [grad_a, grad_b] = call(grads[0], grads[1], s);
    at::Tensor grad_s;
    if (ctx->needs_input_grad(2)) {
      const at::Tensor s_of_a = s.to(a.scalar_type());
      const auto by_channel = [&](const at::Tensor& x) {
        return at::sum_to(x, s.sym_sizes()).to(s.scalar_type());
      };
      grad_s = by_channel(-grad_a * (a / s_of_a)) + by_channel(grads[1] * b);
    }
    return {grad_a, grad_b, grad_s};
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
