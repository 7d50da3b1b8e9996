// Values of a prepared operand, which the gradient of the other one is computed with.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "ops/sc_matmul.h"

namespace scmp {

/// Raises ValueError in grad mode where a tensor of the prepared operand requires grad.
void check_has_no_gradient(const char* op, at::TensorList b);

/// Keeps what the values follow from, and `others` beside it: the spec and the environment may have
/// changed when the backward pass comes.
void save_prepared(torch::autograd::AutogradContext* ctx, const PreparedCall& call,
                   torch::autograd::variable_list others);

/// What save_prepared kept: the operand as sc_matmul sees it, levels times scales with the
/// smoothing undone, float32 of its shape; and the others.
struct SavedPrepared {
  at::Tensor values;
  torch::autograd::variable_list others;
};
SavedPrepared saved_prepared(torch::autograd::AutogradContext* ctx);

}  // namespace scmp
