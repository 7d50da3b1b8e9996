// The public quantizers on CUDA.
#include "ops/quantizers.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "ops/cuda/operand.h"
#include "ops/value_error.h"
#include "quant/affine.h"

namespace scmp::cuda {
namespace {

at::Tensor like(const at::Tensor& x, at::ScalarType dtype) {
  return at::empty(x.sizes(), x.options().dtype(dtype));
}

at::Tensor per_row(const at::Tensor& x) {
  return at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kFloat));
}

void run(const char* op, const at::Tensor& x, QuantizeArgs& args) {
  if (x.numel() == 0 && args.source.total_rows() == 0) return;
  Workspace workspace;
  const RangeKeys keys(workspace, &args, 1);
  if (keys.any()) workspace.allocate(x);
  with_value_errors(op, [&] { keys.quantize(workspace, &args, 1); });
}

std::tuple<at::Tensor, at::Tensor> fused_quantize_bipolar_cuda(const at::Tensor& x, double abs_max,
                                                               int64_t sc_prec,
                                                               std::optional<int64_t> rng_levels) {
  const c10::cuda::OptionalCUDAGuard guard(at::device_of(x));
  const FusedQuant quant = check_fused_quantize_bipolar(x, abs_max, sc_prec, rng_levels);
  at::Tensor code = like(x, at::kShort), sign = like(x, at::kChar);
  QuantizeArgs args = operand_args(x, quant.scheme, Grouping{}, quant.levels);
  args.range_from = RangeFrom::argument;
  args.argument = make_tensor_affine(quant.scheme, 0.0, abs_max);
  args.output = Output::bipolar_codes;
  args.codes = code.mutable_data_ptr<int16_t>();
  args.signs = sign.mutable_data_ptr<int8_t>();
  run("fused_quantize_bipolar", x, args);
  return {code, sign};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_quantize_bipolar_perrow_cuda(
    const at::Tensor& x, int64_t sc_prec, std::optional<int64_t> rng_levels) {
  const c10::cuda::OptionalCUDAGuard guard(at::device_of(x));
  const FusedQuant quant = check_fused_quantize_bipolar_perrow(x, sc_prec, rng_levels);
  at::Tensor code = like(x, at::kShort), sign = like(x, at::kChar), scale = per_row(x);
  QuantizeArgs args = operand_args(x, quant.scheme, Grouping{}, quant.levels);
  args.output = Output::bipolar_codes;
  args.codes = code.mutable_data_ptr<int16_t>();
  args.signs = sign.mutable_data_ptr<int8_t>();
  args.scales = scale.mutable_data_ptr<float>();
  run("fused_quantize_bipolar_perrow", x, args);
  return {code, sign, scale};
}

std::tuple<at::Tensor, std::optional<at::Tensor>> fused_quantize_unipolar_cuda(
    const at::Tensor& x, double fp_max, double fp_min, int64_t sc_prec, bool compute_sum,
    std::optional<int64_t> rng_levels) {
  const c10::cuda::OptionalCUDAGuard guard(at::device_of(x));
  const FusedQuant quant = check_fused_quantize_unipolar(x, fp_max, fp_min, sc_prec, rng_levels);
  at::Tensor code = like(x, at::kInt);
  std::optional<at::Tensor> row_sum;
  if (compute_sum) row_sum = per_row(x);
  QuantizeArgs args = operand_args(x, quant.scheme, Grouping{}, quant.levels);
  args.range_from = RangeFrom::argument;
  args.argument = make_tensor_affine(quant.scheme, fp_min, fp_max);
  args.output = Output::unipolar_codes;
  args.wide_codes = code.mutable_data_ptr<int32_t>();
  if (compute_sum) args.sums = row_sum->mutable_data_ptr<float>();
  run("fused_quantize_unipolar", x, args);
  return {code, row_sum};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_symmetric_quant_cuda(const at::Tensor& x,
                                                                            int64_t group,
                                                                            int64_t qmax) {
  const c10::cuda::OptionalCUDAGuard guard(at::device_of(x));
  const QuantScheme scheme = check_grouped_quant("grouped_symmetric_quant", x, group, qmax, false);
  at::Tensor scale = per_row(x), q = like(x, at::kFloat), sign = like(x, at::kChar);
  QuantizeArgs args = operand_args(x, scheme, {Grouping::Kind::row_groups, group, 0}, 0);
  args.output = Output::symmetric_levels;
  args.levels_out = q.mutable_data_ptr<float>();
  args.signs = sign.mutable_data_ptr<int8_t>();
  args.scales = scale.mutable_data_ptr<float>();
  run("grouped_symmetric_quant", x, args);
  return {scale, q, sign};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_asymmetric_quant_cuda(const at::Tensor& x,
                                                                             int64_t group,
                                                                             int64_t qmax) {
  const c10::cuda::OptionalCUDAGuard guard(at::device_of(x));
  const QuantScheme scheme = check_grouped_quant("grouped_asymmetric_quant", x, group, qmax, true);
  at::Tensor scale = per_row(x), zero_point = per_row(x), q = like(x, at::kFloat);
  QuantizeArgs args = operand_args(x, scheme, {Grouping::Kind::row_groups, group, 0}, 0);
  args.output = Output::asymmetric_levels;
  args.levels_out = q.mutable_data_ptr<float>();
  args.scales = scale.mutable_data_ptr<float>();
  args.zeros = zero_point.mutable_data_ptr<float>();
  run("grouped_asymmetric_quant", x, args);
  return {scale, zero_point, q};
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CUDA, m) {
  m.impl("fused_quantize_bipolar", fused_quantize_bipolar_cuda);
  m.impl("fused_quantize_bipolar_perrow", fused_quantize_bipolar_perrow_cuda);
  m.impl("fused_quantize_unipolar", fused_quantize_unipolar_cuda);
  m.impl("grouped_symmetric_quant", grouped_symmetric_quant_cuda);
  m.impl("grouped_asymmetric_quant", grouped_asymmetric_quant_cuda);
}

}  // namespace scmp::cuda
