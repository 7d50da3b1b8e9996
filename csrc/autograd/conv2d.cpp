// Straight-through gradients of the operators behind sc_conv2d: conv2d's own, so that the forward
// pass gathers codes whether or not a gradient is wanted.
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include "autograd/conv2d_gradients.h"
#include "autograd/dequantized.h"
#include "conv/products.h"

namespace scmp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr const char* kOp = "sc_conv2d";

void check_no_tangent(std::initializer_list<std::optional<at::Tensor>> operands) {
  for (const std::optional<at::Tensor>& x : operands) {
    TORCH_CHECK_NOT_IMPLEMENTED(!x || !x->_fw_grad(0).defined(), kOp,
                                ": forward-mode differentiation is not supported");
  }
}

void save_geometry(AutogradContext* ctx, const Geometry& g) {
  std::vector<int64_t> sizes;
  for (const Pair& pair : {g.kernel, g.stride, g.dilation, g.before, g.after}) {
    sizes.insert(sizes.end(), pair.begin(), pair.end());
  }
  ctx->saved_data["geometry"] = sizes;
  ctx->saved_data["groups"] = g.groups;
}

Geometry saved_geometry(AutogradContext* ctx) {
  const std::vector<int64_t> s = ctx->saved_data["geometry"].toIntVector();
  return {{s[0], s[1]}, {s[2], s[3]}, {s[4], s[5]},
          {s[6], s[7]}, {s[8], s[9]}, ctx->saved_data["groups"].toInt()};
}

// What counts of a group's lowered rows; undefined where everything does. `y` is the output.
at::Tensor counted_of(const at::Tensor& x, const at::Tensor& y, const Geometry& g,
                      const LengthArgs& lengths, int64_t chunk_d) {
  if (!lengths.by_row()) return {};
  const c10::SymInt rows = y.sym_size(0) * y.sym_size(2) * y.sym_size(3);
  return counted_elements({rows, x.sym_size(1) / g.groups * g.taps()}, lengths, chunk_d);
}

at::Tensor call_below_autograd(const at::Tensor& x, const at::Tensor& weight, const Geometry& g,
                               MatmulArgs args, const std::optional<at::Tensor>& smooth_scales) {
  args.smooth_scales = smooth_scales;
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_conv2d_products(x, weight, g, args);
}

struct Conv2dProducts : Function<Conv2dProducts> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const Geometry& g, const MatmulArgs& args,
                            const std::optional<at::Tensor>& smooth_scales) {
    at::Tensor y = call_below_autograd(x, weight, g, args, smooth_scales);
    ctx->save_for_backward({x, weight, smooth_scales.value_or(at::Tensor()),
                            counted_of(x, y, g, args.lengths, args.chunk_d)});
    save_geometry(ctx, g);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &scales = saved[2], &counted = saved[3];
    const Geometry g = saved_geometry(ctx);
    at::Tensor grad_x, grad_weight, grad_scales;
    if (grads[0].defined()) {
      if (ctx->needs_input_grad(0)) {
        grad_x = conv2d_input_gradient(grads[0], x, weight, g, counted);
      }
      if (ctx->needs_input_grad(1)) {
        grad_weight = conv2d_weight_gradient(grads[0], x, weight, g, counted);
      }
      if (scales.defined() && scales.requires_grad()) grad_scales = at::zeros_like(scales);
    }
    return {grad_x, grad_weight, at::Tensor(), at::Tensor(), grad_scales};
  }
};

at::Tensor conv2d_products_autograd(const at::Tensor& x, const at::Tensor& weight,
                                    const Geometry& g, const MatmulArgs& all) {
  MatmulArgs args = all;
  const std::optional<at::Tensor> smooth_scales = args.smooth_scales;
  args.smooth_scales = std::nullopt;
  check_no_tangent({x, weight, smooth_scales});
  if (at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad() ||
                                     (smooth_scales && smooth_scales->requires_grad()))) {
    return Conv2dProducts::apply(x, weight, g, args, smooth_scales);
  }
  return call_below_autograd(x, weight, g, args, smooth_scales);
}

// The call's arguments besides x: nothing of it is differentiated.
struct Rest {
  at::TensorList weight;
  Geometry geometry;
  PreparedArgs args;
};

at::Tensor call_below_autograd(const at::Tensor& x, const Rest& rest) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_conv2d_products(x, rest.weight, rest.geometry, rest.args);
}

struct Conv2dProductsPrepared : Function<Conv2dProductsPrepared> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Rest& rest) {
    at::Tensor y = call_below_autograd(x, rest);
    const PreparedCall call = check_prepared_b("sc_matmul", rest.weight, rest.args);
    save_prepared(ctx, call,
                  {x, counted_of(x, y, rest.geometry, rest.args.lengths, call.knobs.chunk_d)});
    save_geometry(ctx, rest.geometry);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    at::Tensor grad_x;
    if (grads[0].defined()) {
      const SavedPrepared b = saved_prepared(ctx);
      const Geometry g = saved_geometry(ctx);
      const at::Tensor& x = b.others[0];
      const at::Tensor weight = b.values.reshape_symint(
          {grads[0].sym_size(1), x.sym_size(1) / g.groups, g.kernel[0], g.kernel[1]});
      grad_x = conv2d_input_gradient(grads[0], x, weight, g, b.others[1]);
    }
    return {grad_x, at::Tensor()};
  }
};

at::Tensor conv2d_products_prepared_autograd(const at::Tensor& x, at::TensorList weight,
                                             const PreparedSpec& /*spec*/, const Geometry& g,
                                             const PreparedArgs& args) {
  const Rest rest{weight, g, args};
  check_no_tangent({x});
  check_has_no_gradient(kOp, weight);
  if (at::GradMode::is_enabled() && x.requires_grad()) {
    return Conv2dProductsPrepared::apply(x, rest);
  }
  return call_below_autograd(x, rest);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Autograd, m) {
  m.impl("conv2d_products", conv2d_kernel<conv2d_products_autograd>);
  m.impl("conv2d_products.prepared", conv2d_prepared_kernel<conv2d_products_prepared_autograd>);
}

}  // namespace scmp
