// Shapes of sc_matmul without values: the same check, symbolic sizes.
#include "ops/sc_matmul.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

namespace scmp {
namespace {

at::Tensor shaped_like(const at::Tensor& a, c10::SymInt columns) {
  auto shape = a.sym_sizes().vec();
  shape.back() = std::move(columns);
  return at::empty_symint(shape, a.options().dtype(at::kFloat));
}

at::Tensor sc_matmul_meta(const at::Tensor& a, const at::Tensor& b, const MatmulArgs& args) {
  check_sc_matmul("sc_matmul", a, b, args);
  return shaped_like(a, b.sym_size(-2));
}

at::Tensor sc_matmul_prepared_meta(const at::Tensor& a, at::TensorList b,
                                   const PreparedArgs& args) {
  return shaped_like(a, check_prepared(a, b, args).spec->rows());
}

std::vector<at::Tensor> prepare_meta(const at::Tensor& b, const MatmulArgs& args, bool /*expand*/) {
  const MatmulKnobs knobs = check_prepare("prepare", b, args);
  return empty_prepared(b, knobs, args.smooth_scales.has_value()).list();
}

at::Tensor expand_prepared_meta(at::TensorList b, c10::string_view spec) {
  check_prepared_b("sc_matmul", b, {spec, 1, {}});
  return at::empty({0}, b[0].options().dtype(at::kByte));
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Meta, m) {
  m.impl("expand_prepared", expand_prepared_meta);
  m.impl("sc_matmul", sc_matmul_kernel<sc_matmul_meta>);
  m.impl("sc_matmul.prepared", prepared_kernel<sc_matmul_prepared_meta>);
  m.impl("prepare", prepare_kernel<prepare_meta>);
}

}  // namespace scmp
