#include "conv/products.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "ops/value_error.h"

namespace scmp {
namespace {

std::array<int64_t, 4> sides(const Geometry& g) {
  return {g.before[0], g.after[0], g.before[1], g.after[1]};
}

}  // namespace

at::Tensor call_conv2d_products(const at::Tensor& x, const at::Tensor& weight, const Geometry& g,
                                const MatmulArgs& args) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("scmp::conv2d_products", "")
                             .typed<decltype(conv2d_kernel<nullptr>)>();
  const LengthArgs& l = args.lengths;
  return op.call(x, weight, g.stride, sides(g), g.dilation, g.groups, args.granularity, args.mode,
                 args.sc_prec, l.stoc_len, args.chunk_d, args.group_a, args.group_b,
                 args.rng_levels, args.config, args.halve_bipolar_stoc_len, args.smooth_scales,
                 l.row_stoc_len, l.rung_table, l.level_lens);
}

at::Tensor call_conv2d_products(const at::Tensor& x, at::TensorList weight, const Geometry& g,
                                const PreparedArgs& args) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("scmp::conv2d_products", "prepared")
                             .typed<decltype(conv2d_prepared_kernel<nullptr>)>();
  const LengthArgs& l = args.lengths;
  return op.call(x, weight, args.spec, g.stride, sides(g), g.dilation, args.group_a, l.stoc_len,
                 l.row_stoc_len, l.rung_table, l.level_lens);
}

}  // namespace scmp
