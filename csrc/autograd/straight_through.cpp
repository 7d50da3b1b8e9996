#include "autograd/straight_through.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>

#include <string>

namespace scmp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct OnceDifferentiable : Function<OnceDifferentiable> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor&, const at::Tensor&,
                            const char* op, const std::function<at::Tensor()>& compute) {
    ctx->saved_data["op"] = std::string(op);
    at::AutoDispatchBelowADInplaceOrView guard;
    return compute();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, ctx->saved_data["op"].toStringRef(),
                                ": its straight-through gradient has no derivative; "
                                "double backward is not supported");
  }
};

}  // namespace

at::Tensor once_differentiable(const char* op, const at::Tensor& first, const at::Tensor& second,
                               const std::function<at::Tensor()>& compute) {
  if (at::GradMode::is_enabled() && (first.requires_grad() || second.requires_grad())) {
    return OnceDifferentiable::apply(first, second, op, compute);
  }
  return compute();
}

at::ScalarType wide_type(const at::Tensor& operand) {
  return operand.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor straight_through_gradient(const at::Tensor& left, const at::Tensor& right,
                                     at::ScalarType dtype) {
  return once_differentiable("sc_matmul", left, right, [&] {
    const at::ScalarType wide = wide_type(right);
    return at::matmul(left.to(wide), right.to(wide)).to(dtype);
  });
}

at::Tensor only_counted(const at::Tensor& x, const at::Tensor& counted) {
  return counted.defined() ? at::where(counted, x, at::zeros({}, x.options())) : x;
}

}  // namespace scmp
