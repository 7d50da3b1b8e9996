// Straight-through gradient of sc_matmul with a prepared b: a @ b.T for b's dequantized values.
#include <ATen/TensorOperators.h>
#include <ATen/ops/repeat_interleave.h>
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
  PreparedArgs args;
};

at::Tensor call_below_autograd(const at::Tensor& a, const Rest& rest) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return call_prepared(a, rest.b, rest.args);
}

// What b's values follow from, beside its tensors.
struct Levels {
  int64_t qmax, levels, chunk_d;
  bool unipolar, tensor, smooth;
};

// b as sc_matmul sees it: levels times scales, the smoothing undone; float32 of b's shape.
at::Tensor dequantized(const variable_list& b, const Levels& l) {
  const at::Tensor &codes = b[0], &scales = b[1], &zero_points = b[2], &map = b[4];
  at::Tensor levels = (codes.to(at::kDouble) * l.qmax / l.levels).round().to(at::kFloat);
  levels = levels.view({scales.size(0), codes.size(-2), codes.size(-1)});
  if (l.unipolar) {
    levels = levels - (l.tensor ? map.select(0, 1).to(at::kFloat) : zero_points.unsqueeze(-1));
  }
  at::Tensor factors = scales.transpose(-2, -1);  // (B, M, chunks)
  if (factors.size(-1) > 1) {
    factors = at::repeat_interleave(factors, l.chunk_d, -1).slice(-1, 0, codes.size(-1));
  }
  at::Tensor values = levels * factors;
  if (l.smooth) values = values / b[5];
  return values.view(codes.sizes());
}

struct ScMatmulPrepared : Function<ScMatmulPrepared> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const Rest& rest) {
    const PreparedCall call = check_prepared(a, rest.b, rest.args);
    // The spec and the environment may have changed when the backward pass comes.
    variable_list saved = rest.b.slice(0, 6).vec();
    saved.push_back(call.knobs.by_row ? counted_elements(a, rest.args.lengths, call.knobs.chunk_d)
                                      : at::Tensor());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["qmax"] = static_cast<int64_t>(call.knobs.qmax());
    ctx->saved_data["levels"] = static_cast<int64_t>(call.knobs.levels);
    ctx->saved_data["chunk_d"] = call.knobs.chunk_d;
    ctx->saved_data["unipolar"] = call.knobs.unipolar;
    ctx->saved_data["tensor"] = call.knobs.granularity == Granularity::per_tensor;
    ctx->saved_data["smooth"] = call.spec->smooth;
    ctx->saved_data["dtype"] = static_cast<int64_t>(a.scalar_type());
    return call_below_autograd(a, rest);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    at::Tensor grad_a;
    if (grads[0].defined()) {
      auto& saved = ctx->saved_data;
      const Levels levels{saved["qmax"].toInt(),    saved["levels"].toInt(),
                          saved["chunk_d"].toInt(), saved["unipolar"].toBool(),
                          saved["tensor"].toBool(), saved["smooth"].toBool()};
      const variable_list tensors = ctx->get_saved_variables();
      grad_a = only_counted(
          straight_through_gradient(grads[0], dequantized(tensors, levels),
                                    static_cast<at::ScalarType>(saved["dtype"].toInt())),
          tensors[6]);
    }
    return {grad_a, at::Tensor()};
  }
};

at::Tensor sc_matmul_prepared_autograd(const at::Tensor& a, at::TensorList b,
                                       const PreparedArgs& args) {
  const Rest rest{b, args};
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
  m.impl("sc_matmul.prepared", prepared_kernel<sc_matmul_prepared_autograd>);
}

}  // namespace scmp
