// Straight-through gradient of sc_matmul with a prepared b: a @ b.T for b's dequantized values.
#include <ATen/ops/repeat_interleave.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
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

// The call's arguments besides a: nothing of it is differentiated.
struct Rest {
  at::TensorList b;
  c10::string_view spec;
  int64_t group_a;
  std::optional<int64_t> stoc_len;
};

at::Tensor call_below_autograd(const at::Tensor& a, const Rest& rest) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("scmp::sc_matmul", "prepared")
          .typed<at::Tensor(const at::Tensor&, at::TensorList, c10::string_view, int64_t,
                            std::optional<int64_t>)>();
  at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(a, rest.b, rest.spec, rest.group_a, rest.stoc_len);
}

// b as sc_matmul sees it: levels times scales, the smoothing undone; float32 of b's shape.
at::Tensor dequantized(const PreparedCall& call) {
  const Prepared& b = call.b;
  const MatmulKnobs& knobs = call.knobs;
  const int64_t depth = call.spec->depth(), batches = call.spec->batches();
  at::Tensor levels =
      (b.codes.to(at::kDouble) * knobs.qmax() / knobs.levels).round().to(at::kFloat);
  levels = levels.view({batches, call.spec->rows(), depth});
  if (knobs.unipolar) {
    levels = levels - (b.zero_points.numel() > 0 ? b.zero_points.unsqueeze(-1)
                                                 : b.tensor_map.select(0, 1).to(at::kFloat));
  }
  at::Tensor scales = b.scales.transpose(-2, -1);  // (B, M, chunks)
  if (scales.size(-1) > 1) {
    scales = at::repeat_interleave(scales, knobs.chunk_d, -1).slice(-1, 0, depth);
  }
  at::Tensor values = levels * scales;
  if (call.spec->smooth) values = values / b.smooth_scales;
  return values.view(call.spec->shape);
}

struct ScMatmulPrepared : Function<ScMatmulPrepared> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const Rest& rest) {
    ctx->save_for_backward(rest.b.vec());
    ctx->saved_data["spec"] = std::string(rest.spec);
    ctx->saved_data["dtype"] = static_cast<int64_t>(a.scalar_type());
    return call_below_autograd(a, rest);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    at::Tensor grad_a;
    if (grads[0].defined()) {
      const std::string spec = ctx->saved_data["spec"].toStringRef();
      const variable_list b = ctx->get_saved_variables();
      const PreparedCall call = check_prepared_b("sc_matmul", b, spec, 1, std::nullopt);
      grad_a = straight_through_gradient(
          grads[0], dequantized(call),
          static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt()));
    }
    return {grad_a, at::Tensor()};
  }
};

at::Tensor sc_matmul_prepared_autograd(const at::Tensor& a, at::TensorList b,
                                       c10::string_view spec, int64_t group_a,
                                       std::optional<int64_t> stoc_len) {
  const Rest rest{b, spec, group_a, stoc_len};
  TORCH_CHECK_NOT_IMPLEMENTED(!a._fw_grad(0).defined(),
                              "sc_matmul: forward-mode differentiation is not supported");
  if (at::GradMode::is_enabled()) {
    for (const at::Tensor& part : b) {
      TORCH_CHECK_VALUE(!part.requires_grad(),
                        "sc_matmul: a prepared b must not require grad; it has no gradient");
    }
    if (a.requires_grad()) return ScMatmulPrepared::apply(a, rest);
  }
  return call_below_autograd(a, rest);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Autograd, m) {
  m.impl("sc_matmul.prepared", sc_matmul_prepared_autograd);
}

}  // namespace scmp
