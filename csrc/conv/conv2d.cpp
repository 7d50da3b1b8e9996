// sc_conv2d: equal, bit for bit, to sc_matmul on the lowered input.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <string>

#include "conv/lowering.h"
#include "conv/products.h"
#include "ops/tensor_checks.h"
#include "ops/value_error.h"

namespace scmp {
namespace {

// Whether it is one operator: elsewhere (Meta) it is lowered, which checks what its kernels do.
bool one_operator(const at::Tensor& x) { return x.is_cuda() || x.is_cpu(); }

// Bias in float32, then x's dtype.
at::Tensor finish(at::Tensor y, const std::optional<at::Tensor>& bias, at::ScalarType dtype,
                  bool batched) {
  if (bias) y = y + bias->to(at::kFloat).unsqueeze(-1).unsqueeze(-1);
  y = y.to(dtype);
  return batched ? y : y.squeeze(0);
}

// What `body` returns; errors of the matmul that it runs carry the convolution's name.
template <typename Body>
at::Tensor as_convolution(const char* op, const Body& body) {
  try {
    return body();
  } catch (const c10::ValueError& error) {
    const std::string inner = "sc_matmul: ", text = error.msg();
    if (text.rfind(inner, 0) != 0) throw;
    TORCH_CHECK_VALUE(false, op, ": ", text.substr(inner.size()));
  }
}

at::Tensor as_batch(const char* op, const at::Tensor& x) {
  check_rank(op, "x", x, 3, 4);
  return x.dim() == 4 ? x : x.unsqueeze(0);
}

template <typename Padding>
at::Tensor sc_conv2d(const at::Tensor& input, const at::Tensor& weight,
                     const std::optional<at::Tensor>& given_bias, at::IntArrayRef stride,
                     Padding padding, at::IntArrayRef dilation, int64_t groups,
                     c10::string_view granularity, c10::string_view mode, int64_t sc_prec,
                     std::optional<int64_t> stoc_len, int64_t chunk_d, int64_t group_a,
                     int64_t group_b, std::optional<int64_t> rng_levels,
                     std::optional<c10::string_view> config, bool halve_bipolar_stoc_len,
                     const std::optional<at::Tensor>& smooth_scales,
                     const std::optional<at::Tensor>& row_stoc_len,
                     const std::optional<at::Tensor>& rung_table,
                     at::OptionalIntArrayRef level_lens) {
  const char* op = "sc_conv2d";
  TORCH_CHECK_VALUE(granularity != "per_head", op,
                    ": granularity must be 'per_row' or 'per_tensor', got 'per_head'");
  const at::Tensor x = as_batch(op, input);
  const std::optional<at::Tensor> bias = present(given_bias);
  const WeightShape shape = shape_of(op, weight);
  check_weight(op, x, weight);
  Geometry g = check_geometry(op, x, shape, bias, stride, dilation, groups);
  set_padding(op, g, padding);
  const c10::SymInt height = out_size(op, x, g, 0), width = out_size(op, x, g, 1);
  const MatmulArgs args{granularity,
                        mode,
                        sc_prec,
                        length_args(stoc_len, row_stoc_len, rung_table, level_lens),
                        chunk_d,
                        group_a,
                        group_b,
                        rng_levels,
                        config,
                        halve_bipolar_stoc_len,
                        present(smooth_scales)};
  const at::Tensor y = as_convolution(op, [&] {
    return one_operator(x) ? call_conv2d_products(x, weight, g, args)
                           : as_images(lowered_products(op, x, weight, g, args, height * width), x,
                                       height, width);
  });
  return finish(y, bias, x.scalar_type(), input.dim() == 4);
}

template <typename Padding>
at::Tensor sc_conv2d_prepared(const at::Tensor& input, at::TensorList weight, c10::string_view text,
                              const std::optional<at::Tensor>& given_bias, at::IntArrayRef stride,
                              Padding padding, at::IntArrayRef dilation, int64_t group_a,
                              std::optional<int64_t> stoc_len,
                              const std::optional<at::Tensor>& row_stoc_len,
                              const std::optional<at::Tensor>& rung_table,
                              at::OptionalIntArrayRef level_lens) {
  const char* op = "sc_conv2d";
  const at::Tensor x = as_batch(op, input);
  const std::optional<at::Tensor> bias = present(given_bias);
  const auto spec = with_value_errors(op, [&] { return read_prepared_spec(std::string(text)); });
  Geometry g = check_geometry(op, x, shape_of(op, *spec), bias, stride, dilation, spec->batches());
  set_padding(op, g, padding);
  const c10::SymInt height = out_size(op, x, g, 0), width = out_size(op, x, g, 1);
  const PreparedArgs args{text, group_a,
                          length_args(stoc_len, row_stoc_len, rung_table, level_lens)};
  const at::Tensor y = as_convolution(op, [&] {
    return one_operator(x)
               ? call_conv2d_products(x, weight, g, args)
               : as_images(lowered_products(op, x, weight, g, args, spec->rows(), height * width),
                           x, height, width);
  });
  return finish(y, bias, x.scalar_type(), input.dim() == 4);
}

template <typename Padding>
at::Tensor conv2d_lowered_rows(const at::Tensor& input, const at::Tensor& weight,
                               at::IntArrayRef stride, Padding padding, at::IntArrayRef dilation) {
  const char* op = "conv2d_lowered_rows";
  const at::Tensor x = as_batch(op, input);
  const WeightShape shape = shape_of(op, weight);
  check_weight(op, x, weight);
  Geometry g = check_geometry(op, x, shape, std::nullopt, stride, dilation, 1);
  set_padding(op, g, padding);
  const c10::SymInt rows = x.sym_size(0) * out_size(op, x, g, 0) * out_size(op, x, g, 1);
  const c10::SymInt columns = x.sym_size(1) * g.taps();
  if (columns == 0) return at::zeros_symint({rows, 0}, x.options().dtype(at::kFloat));
  return lower(x, g).reshape_symint({rows, columns}).to(at::kFloat);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CompositeImplicitAutograd, m) {
  m.impl("sc_conv2d", sc_conv2d<at::IntArrayRef>);
  m.impl("sc_conv2d.padding", sc_conv2d<c10::string_view>);
  m.impl("sc_conv2d.prepared", sc_conv2d_prepared<at::IntArrayRef>);
  m.impl("sc_conv2d.prepared_padding", sc_conv2d_prepared<c10::string_view>);
  m.impl("conv2d_lowered_rows", conv2d_lowered_rows<at::IntArrayRef>);
  m.impl("conv2d_lowered_rows.padding", conv2d_lowered_rows<c10::string_view>);
}

}  // namespace scmp
