#include "autograd/straight_through.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>

namespace scmp {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// left @ right at no less than float32, in the dtype of the operand whose gradient it is.
at::Tensor product_as(const at::Tensor& left, const at::Tensor& right, at::ScalarType dtype) {
  const auto wide = right.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::matmul(left.to(wide), right.to(wide)).to(dtype);
}

// The same as an autograd node that cannot be differentiated again.
struct OnceDifferentiable : Function<OnceDifferentiable> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& left, const at::Tensor& right,
                            at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return product_as(left, right, dtype);
  }
  static variable_list backward(AutogradContext*, const variable_list&) {
    TORCH_CHECK_NOT_IMPLEMENTED(false,
                                "sc_matmul: its straight-through gradient has no derivative; "
                                "double backward is not supported");
  }
};

}  // namespace

at::Tensor straight_through_gradient(const at::Tensor& left, const at::Tensor& right,
                                     at::ScalarType dtype) {
  if (at::GradMode::is_enabled() && (left.requires_grad() || right.requires_grad())) {
    return OnceDifferentiable::apply(left, right, dtype);
  }
  return product_as(left, right, dtype);
}

at::Tensor only_counted(const at::Tensor& x, const at::Tensor& counted) {
  return counted.defined() ? at::where(counted, x, at::zeros({}, x.options())) : x;
}

}  // namespace scmp
