// What the straight-through gradients share.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace scmp {

/// compute() of `first` and `second`; as an autograd node that cannot be differentiated again where
/// one would be recorded. An error names the operator `op`.
at::Tensor once_differentiable(const char* op, const at::Tensor& first, const at::Tensor& second,
                               const std::function<at::Tensor()>& compute);

/// At least float32: what a product with this operand is computed in.
at::ScalarType wide_type(const at::Tensor& operand);

/// left @ right at no less than float32, in the dtype of the operand whose gradient it is: of
/// sc_matmul, once differentiable.
at::Tensor straight_through_gradient(const at::Tensor& left, const at::Tensor& right,
                                     at::ScalarType dtype);

/// x with zeros where `counted` (a bool that broadcasts to it) is false; x where it is undefined.
at::Tensor only_counted(const at::Tensor& x, const at::Tensor& counted);

}  // namespace scmp
