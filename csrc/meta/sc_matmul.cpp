// Shapes of sc_matmul without values: the same check, symbolic sizes.
#include "ops/sc_matmul.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace scmp {
namespace {

at::Tensor sc_matmul_meta(const at::Tensor& a, const at::Tensor& b, c10::string_view granularity,
                          c10::string_view mode, int64_t sc_prec, std::optional<int64_t> stoc_len,
                          int64_t chunk_d, int64_t group_a, int64_t group_b,
                          std::optional<int64_t> rng_levels, std::optional<c10::string_view> config,
                          bool halve_bipolar_stoc_len,
                          const std::optional<at::Tensor>& smooth_scales) {
  check_sc_matmul("sc_matmul", a, b,
                  {granularity, mode, sc_prec, stoc_len, chunk_d, group_a, group_b, rng_levels,
                   config, halve_bipolar_stoc_len, smooth_scales});
  auto shape = a.sym_sizes().vec();
  shape.back() = b.sym_size(-2);
  return at::empty_symint(shape, a.options().dtype(at::kFloat));
}

at::Tensor sc_matmul_prepared_meta(const at::Tensor& a, at::TensorList b, c10::string_view spec,
                                   int64_t group_a, std::optional<int64_t> stoc_len) {
  const PreparedCall call = check_prepared(a, b, spec, group_a, stoc_len);
  auto shape = a.sym_sizes().vec();
  shape.back() = call.spec->rows();
  return at::empty_symint(shape, a.options().dtype(at::kFloat));
}

std::vector<at::Tensor> prepare_meta(const at::Tensor& b, c10::string_view granularity,
                                     c10::string_view mode, int64_t sc_prec, int64_t chunk_d,
                                     int64_t group_b, std::optional<int64_t> rng_levels,
                                     std::optional<c10::string_view> config,
                                     bool halve_bipolar_stoc_len,
                                     const std::optional<at::Tensor>& smooth_scales, bool) {
  const MatmulKnobs knobs =
      check_prepare("prepare", b,
                    {granularity, mode, sc_prec, std::nullopt, chunk_d, 1, group_b, rng_levels,
                     config, halve_bipolar_stoc_len, smooth_scales});
  return empty_prepared(b, knobs, smooth_scales && smooth_scales->defined()).list();
}

at::Tensor expand_prepared_meta(at::TensorList b, c10::string_view spec) {
  check_prepared_b("sc_matmul", b, spec, 1, std::nullopt);
  return at::empty({0}, b[0].options().dtype(at::kByte));
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Meta, m) {
  m.impl("expand_prepared", expand_prepared_meta);
  m.impl("sc_matmul", sc_matmul_meta);
  m.impl("sc_matmul.prepared", sc_matmul_prepared_meta);
  m.impl("prepare", prepare_meta);
}

}  // namespace scmp
