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

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Meta, m) { m.impl("sc_matmul", sc_matmul_meta); }

}  // namespace scmp
