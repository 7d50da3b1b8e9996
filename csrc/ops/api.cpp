// The C++ functions: thin calls through the dispatcher.
#include <ATen/core/dispatch/Dispatcher.h>

#include "ops/sc_matmul.h"
#include "scmp_kernels/scmp_kernels.h"

namespace scmp {
namespace {

template <typename Signature>
auto find_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace

at::Tensor sc_matmul(const at::Tensor& a, const at::Tensor& b, const MatmulOptions& o) {
  std::optional<c10::string_view> config;
  if (o.config) config = *o.config;
  at::OptionalIntArrayRef level_lens;
  if (o.level_lens) level_lens = *o.level_lens;
  return call_sc_matmul(a, b,
                        {o.granularity,
                         o.mode,
                         o.sc_prec,
                         {o.stoc_len, o.row_stoc_len, o.rung_table, level_lens},
                         o.chunk_d,
                         o.group_a,
                         o.group_b,
                         o.rng_levels,
                         config,
                         o.halve_bipolar_stoc_len,
                         o.smooth_scales});
}

std::tuple<at::Tensor, at::Tensor> fused_quantize_bipolar(const at::Tensor& x, double abs_max,
                                                          int64_t sc_prec,
                                                          std::optional<int64_t> rng_levels) {
  static const auto op = find_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, double, int64_t, std::optional<int64_t>)>("scmp::fused_quantize_bipolar");
  return op.call(x, abs_max, sc_prec, rng_levels);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_quantize_bipolar_perrow(
    const at::Tensor& x, int64_t sc_prec, std::optional<int64_t> rng_levels) {
  static const auto op = find_op<std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, int64_t, std::optional<int64_t>)>("scmp::fused_quantize_bipolar_perrow");
  return op.call(x, sc_prec, rng_levels);
}

std::tuple<at::Tensor, std::optional<at::Tensor>> fused_quantize_unipolar(
    const at::Tensor& x, double fp_max, double fp_min, int64_t sc_prec, bool compute_sum,
    std::optional<int64_t> rng_levels) {
  static const auto op = find_op<std::tuple<at::Tensor, std::optional<at::Tensor>>(
      const at::Tensor&, double, double, int64_t, bool, std::optional<int64_t>)>(
      "scmp::fused_quantize_unipolar");
  return op.call(x, fp_max, fp_min, sc_prec, compute_sum, rng_levels);
}

namespace {

using GroupedSignature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(const at::Tensor&, int64_t,
                                                                        int64_t);

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_symmetric_quant(const at::Tensor& x,
                                                                       int64_t group,
                                                                       int64_t qmax) {
  static const auto op = find_op<GroupedSignature>("scmp::grouped_symmetric_quant");
  return op.call(x, group, qmax);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_asymmetric_quant(const at::Tensor& x,
                                                                        int64_t group,
                                                                        int64_t qmax) {
  static const auto op = find_op<GroupedSignature>("scmp::grouped_asymmetric_quant");
  return op.call(x, group, qmax);
}

}  // namespace scmp
