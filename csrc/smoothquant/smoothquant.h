// SmoothQuant's arithmetic (SPEC 10).
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

namespace scmp {

/// (a / s, b * s), s by channel: the last dimension of both.
std::tuple<at::Tensor, at::Tensor> apply_smoothing(const at::Tensor& a, const at::Tensor& b,
                                                   const at::Tensor& s);

}  // namespace scmp
