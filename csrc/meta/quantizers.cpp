// Shapes of the public quantizers without values.
#include "ops/quantizers.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace scmp {
namespace {

at::Tensor like(const at::Tensor& x, at::ScalarType dtype) {
  return at::empty_symint(x.sym_sizes(), x.options().dtype(dtype));
}

// One float32 per row: x's shape without its last dimension.
at::Tensor per_row(const at::Tensor& x) {
  return at::empty_symint(x.sym_sizes().slice(0, x.dim() - 1), x.options().dtype(at::kFloat));
}

std::tuple<at::Tensor, at::Tensor> fused_quantize_bipolar_meta(const at::Tensor& x, double abs_max,
                                                               int64_t sc_prec,
                                                               std::optional<int64_t> rng_levels) {
  check_fused_quantize_bipolar(x, abs_max, sc_prec, rng_levels);
  return {like(x, at::kShort), like(x, at::kChar)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_quantize_bipolar_perrow_meta(
    const at::Tensor& x, int64_t sc_prec, std::optional<int64_t> rng_levels) {
  check_fused_quantize_bipolar_perrow(x, sc_prec, rng_levels);
  return {like(x, at::kShort), like(x, at::kChar), per_row(x)};
}

std::tuple<at::Tensor, std::optional<at::Tensor>> fused_quantize_unipolar_meta(
    const at::Tensor& x, double fp_max, double fp_min, int64_t sc_prec, bool compute_sum,
    std::optional<int64_t> rng_levels) {
  check_fused_quantize_unipolar(x, fp_max, fp_min, sc_prec, rng_levels);
  std::optional<at::Tensor> row_sum;
  if (compute_sum) row_sum = per_row(x);
  return {like(x, at::kInt), row_sum};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_symmetric_quant_meta(const at::Tensor& x,
                                                                            int64_t group,
                                                                            int64_t qmax) {
  check_grouped_quant("grouped_symmetric_quant", x, group, qmax, false);
  return {per_row(x), like(x, at::kFloat), like(x, at::kChar)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_asymmetric_quant_meta(const at::Tensor& x,
                                                                             int64_t group,
                                                                             int64_t qmax) {
  check_grouped_quant("grouped_asymmetric_quant", x, group, qmax, true);
  return {per_row(x), per_row(x), like(x, at::kFloat)};
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Meta, m) {
  m.impl("fused_quantize_bipolar", fused_quantize_bipolar_meta);
  m.impl("fused_quantize_bipolar_perrow", fused_quantize_bipolar_perrow_meta);
  m.impl("fused_quantize_unipolar", fused_quantize_unipolar_meta);
  m.impl("grouped_symmetric_quant", grouped_symmetric_quant_meta);
  m.impl("grouped_asymmetric_quant", grouped_asymmetric_quant_meta);
}

}  // namespace scmp
