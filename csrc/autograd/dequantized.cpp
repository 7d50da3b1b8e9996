#include "autograd/dequantized.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/repeat_interleave.h>

namespace scmp {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_has_no_gradient(const char* op, at::TensorList b) {
  if (!at::GradMode::is_enabled()) return;
  for (const at::Tensor& part : b) {
    TORCH_CHECK_VALUE(!part.requires_grad(), op,
                      ": a prepared b must not require grad; it has no gradient");
  }
}

void save_prepared(AutogradContext* ctx, const PreparedCall& call, variable_list others) {
  const Prepared& b = call.b;
  variable_list saved = {b.codes, b.scales, b.zero_points, b.tensor_map, b.smooth_scales};
  saved.insert(saved.end(), others.begin(), others.end());
  ctx->save_for_backward(std::move(saved));
  ctx->saved_data["qmax"] = static_cast<int64_t>(call.knobs.qmax());
  ctx->saved_data["levels"] = static_cast<int64_t>(call.knobs.levels);
  ctx->saved_data["chunk_d"] = call.knobs.chunk_d;
  ctx->saved_data["unipolar"] = call.knobs.unipolar;
  ctx->saved_data["tensor"] = call.knobs.granularity == Granularity::per_tensor;
  ctx->saved_data["smooth"] = call.spec->smooth;
}

SavedPrepared saved_prepared(AutogradContext* ctx) {
  const variable_list saved = ctx->get_saved_variables();
  const at::Tensor &codes = saved[0], &scales = saved[1], &zero_points = saved[2], &map = saved[3];
  auto& knobs = ctx->saved_data;
  at::Tensor levels =
      (codes.to(at::kDouble) * knobs["qmax"].toInt() / knobs["levels"].toInt()).round();
  levels = levels.to(at::kFloat).view({scales.size(0), codes.size(-2), codes.size(-1)});
  if (knobs["unipolar"].toBool()) {
    levels = levels - (knobs["tensor"].toBool() ? map.select(0, 1).to(at::kFloat)
                                                : zero_points.unsqueeze(-1));
  }
  at::Tensor factors = scales.transpose(-2, -1);  // (B, M, chunks)
  if (factors.size(-1) > 1) {
    factors =
        at::repeat_interleave(factors, knobs["chunk_d"].toInt(), -1).slice(-1, 0, codes.size(-1));
  }
  at::Tensor values = levels * factors;
  if (knobs["smooth"].toBool()) values = values / saved[4];
  return {values.view(codes.sizes()), variable_list(saved.begin() + 5, saved.end())};
}

}  // namespace scmp
