// The operators behind sc_conv2d.
#pragma once

#include "conv/geometry.h"
#include "ops/sc_matmul.h"
#include "ops/value_error.h"

namespace scmp {

/// conv2d_products and conv2d_products.prepared through the dispatcher: float32
/// (B, Cout, Hout, Wout) in x's memory format, without bias.
at::Tensor call_conv2d_products(const at::Tensor& x, const at::Tensor& weight, const Geometry& g,
                                const MatmulArgs& args);
at::Tensor call_conv2d_products(const at::Tensor& x, at::TensorList weight, const Geometry& g,
                                const PreparedArgs& args);

/// Their kernels from ones that take the arguments bundled.
template <at::Tensor (*kernel)(const at::Tensor&, const at::Tensor&, const Geometry&,
                               const MatmulArgs&)>
at::Tensor conv2d_kernel(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef stride,
                         at::IntArrayRef padding, at::IntArrayRef dilation, int64_t groups,
                         c10::string_view granularity, c10::string_view mode, int64_t sc_prec,
                         std::optional<int64_t> stoc_len, int64_t chunk_d, int64_t group_a,
                         int64_t group_b, std::optional<int64_t> rng_levels,
                         std::optional<c10::string_view> config, bool halve_bipolar_stoc_len,
                         const std::optional<at::Tensor>& smooth_scales,
                         const std::optional<at::Tensor>& row_stoc_len,
                         const std::optional<at::Tensor>& rung_table,
                         at::OptionalIntArrayRef level_lens) {
  const char* op = "sc_conv2d";
  const WeightShape shape = shape_of(op, weight);
  check_weight(op, x, weight);
  Geometry g = check_geometry(op, x, shape, std::nullopt, stride, dilation, groups);
  set_padding(op, g, padding);
  return kernel(x, weight, g,
                {granularity, mode, sc_prec,
                 length_args(stoc_len, row_stoc_len, rung_table, level_lens), chunk_d, group_a,
                 group_b, rng_levels, config, halve_bipolar_stoc_len, present(smooth_scales)});
}

template <at::Tensor (*kernel)(const at::Tensor&, at::TensorList, const PreparedSpec&,
                               const Geometry&, const PreparedArgs&)>
at::Tensor conv2d_prepared_kernel(const at::Tensor& x, at::TensorList weight, c10::string_view text,
                                  at::IntArrayRef stride, at::IntArrayRef padding,
                                  at::IntArrayRef dilation, int64_t group_a,
                                  std::optional<int64_t> stoc_len,
                                  const std::optional<at::Tensor>& row_stoc_len,
                                  const std::optional<at::Tensor>& rung_table,
                                  at::OptionalIntArrayRef level_lens) {
  const char* op = "sc_conv2d";
  const auto spec = with_value_errors(op, [&] { return read_prepared_spec(std::string(text)); });
  Geometry g =
      check_geometry(op, x, shape_of(op, *spec), std::nullopt, stride, dilation, spec->batches());
  set_padding(op, g, padding);
  return kernel(x, weight, *spec, g,
                {text, group_a, length_args(stoc_len, row_stoc_len, rung_table, level_lens)});
}

}  // namespace scmp
