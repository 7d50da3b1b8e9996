// Straight-through gradients: sc_matmul is differentiated as a @ b.T.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include "autograd/straight_through.h"
#include "ops/sc_matmul.h"

namespace scmp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor call_below_autograd(const at::Tensor& a, const at::Tensor& b, MatmulArgs args,
                               const std::optional<at::Tensor>& smooth_scales) {
  args.smooth_scales = smooth_scales;
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_sc_matmul(a, b, args);
}

struct ScMatmul : Function<ScMatmul> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const at::Tensor& b,
                            const MatmulArgs& args,
                            const std::optional<at::Tensor>& smooth_scales) {
    at::Tensor out = call_below_autograd(a, b, args, smooth_scales);
    at::Tensor counted;
    if (args.lengths.by_row()) {
      counted = counted_elements(a.sym_sizes(), args.lengths, args.chunk_d);
    }
    ctx->save_for_backward({a, b, smooth_scales.value_or(at::Tensor()), counted});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], &scales = saved[2], &counted = saved[3];
    const at::Tensor& g = grads[0];
    at::Tensor grad_a, grad_b, grad_scales;
    if (g.defined()) {
      if (ctx->needs_input_grad(0)) {
        grad_a = only_counted(straight_through_gradient(g, b, a.scalar_type()), counted);
      }
      if (ctx->needs_input_grad(1)) {
        grad_b = straight_through_gradient(g.transpose(-2, -1), only_counted(a, counted),
                                           b.scalar_type());
      }
      if (scales.defined() && scales.requires_grad()) grad_scales = at::zeros_like(scales);
    }
    return {grad_a, grad_b, at::Tensor(), grad_scales};
  }
};

at::Tensor sc_matmul_autograd(const at::Tensor& a, const at::Tensor& b, const MatmulArgs& all) {
  MatmulArgs args = all;
  const std::optional<at::Tensor> smooth_scales = args.smooth_scales;
  args.smooth_scales = std::nullopt;
  const auto has_tangent = [](const at::Tensor& x) { return x._fw_grad(0).defined(); };
  TORCH_CHECK_NOT_IMPLEMENTED(
      !has_tangent(a) && !has_tangent(b) && !(smooth_scales && has_tangent(*smooth_scales)),
      "sc_matmul: forward-mode differentiation is not supported");
  if (at::GradMode::is_enabled() && (a.requires_grad() || b.requires_grad() ||
                                     (smooth_scales && smooth_scales->requires_grad()))) {
    return ScMatmul::apply(a, b, args, smooth_scales);
  }
  return call_below_autograd(a, b, args, smooth_scales);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Autograd, m) { m.impl("sc_matmul", sc_matmul_kernel<sc_matmul_autograd>); }

}  // namespace scmp
