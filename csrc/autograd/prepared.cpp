// Straight-through gradient of sc_matmul with a prepared b: a @ b.T for b's dequantized values.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include "autograd/dequantized.h"
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

struct ScMatmulPrepared : Function<ScMatmulPrepared> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& a, const Rest& rest) {
    const PreparedCall call = check_prepared(a, rest.b, rest.args);
    at::Tensor counted;
    if (call.knobs.by_row) {
      counted = counted_elements(a.sym_sizes(), rest.args.lengths, call.knobs.chunk_d);
    }
    save_prepared(ctx, call, {counted});
    ctx->saved_data["dtype"] = static_cast<int64_t>(a.scalar_type());
    return call_below_autograd(a, rest);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    at::Tensor grad_a;
    if (grads[0].defined()) {
      const SavedPrepared b = saved_prepared(ctx);
      const auto dtype = static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt());
      grad_a = only_counted(straight_through_gradient(grads[0], b.values, dtype), b.others[0]);
    }
    return {grad_a, at::Tensor()};
  }
};

at::Tensor sc_matmul_prepared_autograd(const at::Tensor& a, at::TensorList b,
                                       const PreparedArgs& args) {
  const Rest rest{b, args};
  TORCH_CHECK_NOT_IMPLEMENTED(!a._fw_grad(0).defined(),
                              "sc_matmul: forward-mode differentiation is not supported");
  check_has_no_gradient("sc_matmul", b);
  if (at::GradMode::is_enabled() && a.requires_grad()) return ScMatmulPrepared::apply(a, rest);
  return call_below_autograd(a, rest);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Autograd, m) {
  m.impl("sc_matmul.prepared", prepared_kernel<sc_matmul_prepared_autograd>);
}

}  // namespace scmp
