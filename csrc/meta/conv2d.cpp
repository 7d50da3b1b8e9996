// Shapes of the operators behind sc_conv2d without values.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "conv/products.h"
#include "ops/value_error.h"

namespace scmp {
namespace {

at::Tensor images(const at::Tensor& x, const Geometry& g, const c10::SymInt& out) {
  const char* op = "sc_conv2d";
  return at::empty_symint({x.sym_size(0), out, out_size(op, x, g, 0), out_size(op, x, g, 1)},
                          x.options().dtype(at::kFloat), x.suggest_memory_format());
}

at::Tensor conv2d_products_meta(const at::Tensor& x, const at::Tensor& weight, const Geometry& g,
                                const MatmulArgs& /*args*/) {
  return images(x, g, weight.sym_size(0));
}

at::Tensor conv2d_products_prepared_meta(const at::Tensor& x, at::TensorList /*weight*/,
                                         const PreparedSpec& spec, const Geometry& g,
                                         const PreparedArgs& /*args*/) {
  return images(x, g, spec.batches() * spec.rows());
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Meta, m) {
  m.impl("conv2d_products", conv2d_kernel<conv2d_products_meta>);
  m.impl("conv2d_products.prepared", conv2d_prepared_kernel<conv2d_products_prepared_meta>);
}

}  // namespace scmp
