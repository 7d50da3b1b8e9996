// What the straight-through gradients share.
#pragma once

#include <ATen/core/Tensor.h>

namespace scmp {

/// left @ right at no less than float32, in the dtype of the operand whose gradient it is; as an
/// autograd node that cannot be differentiated again where one would be recorded.
at::Tensor straight_through_gradient(const at::Tensor& left, const at::Tensor& right,
                                     at::ScalarType dtype);

/// x with zeros where `counted` (a bool that broadcasts to it) is false; x where it is undefined.
at::Tensor only_counted(const at::Tensor& x, const at::Tensor& counted);

}  // namespace scmp
