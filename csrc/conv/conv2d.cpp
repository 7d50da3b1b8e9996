// sc_conv2d: lowered to sc_matmul, which it equals bit for bit. Written in differentiable, symbolic
// tensor arithmetic, so that gradients and dynamic shapes follow from sc_matmul's own.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <array>
#include <limits>
#include <vector>

#include "ops/sc_matmul.h"
#include "ops/smooth_scales.h"
#include "ops/tensor_checks.h"
#include "ops/value_error.h"

namespace scmp {
namespace {

using Pair = std::array<int64_t, 2>;

// --- geometry ------------------------------------------------------------------------------------

struct Geometry {
  Pair kernel, stride, dilation;
  Pair before, after;  // zero padding
  int64_t groups;
};

Pair pair_of(const char* op, const char* name, at::IntArrayRef values, int64_t least) {
  TORCH_CHECK_VALUE(values.size() == 1 || values.size() == 2, op, ": ", name,
                    " must be an int or a pair, got ", values);
  for (int64_t value : values) {
    TORCH_CHECK_VALUE(value >= least, op, ": ", name, " must be at least ", least, ", got ",
                      values);
  }
  return {values[0], values.back()};
}

struct WeightShape {
  c10::SymInt out, in_group;  // Cout, Cin / groups
  Pair kernel;
};

WeightShape shape_of(const char* op, const at::Tensor& weight) {
  check_rank(op, "weight", weight, 4, 4);
  WeightShape shape{weight.sym_size(0), weight.sym_size(1), {}};
  for (int i = 0; i < 2; ++i) {
    shape.kernel[i] = weight.sym_size(2 + i).guard_int(__FILE__, __LINE__);
    TORCH_CHECK_VALUE(shape.kernel[i] >= 1, op,
                      ": weight's kernel must have sizes of at least 1, got ", weight.sym_sizes());
  }
  return shape;
}

// Of a weight that was prepared: its spec has what it lowers to.
WeightShape shape_of(const char* op, const PreparedSpec& spec) {
  TORCH_CHECK_VALUE(!spec.kernel.empty(), op,
                    ": weight must have been prepared from a 4D weight, got one of ",
                    spec.shape.size(), "D");
  const int64_t groups = spec.batches(), taps = spec.kernel[0] * spec.kernel[1];
  return {groups * spec.rows(), spec.depth() / taps, {spec.kernel[0], spec.kernel[1]}};
}

// Shapes, dtypes and devices; x is batched.
Geometry check(const char* op, const at::Tensor& x, const WeightShape& weight,
               const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
               at::IntArrayRef dilation, int64_t groups) {
  check_dtype(op, "x", x);
  Geometry g;
  g.kernel = weight.kernel;
  g.stride = pair_of(op, "stride", stride, 1);
  g.dilation = pair_of(op, "dilation", dilation, 1);
  TORCH_CHECK_VALUE(groups >= 1, op, ": groups must be at least 1, got ", groups);
  g.groups = groups;
  TORCH_CHECK_VALUE(x.sym_size(1) == weight.in_group * groups, op, ": weight must have shape ",
                    "(Cout, Cin / groups, kh, kw) for x with Cin = ", x.sym_size(1),
                    " and groups = ", groups, ", got [", weight.out, ", ", weight.in_group, ", ",
                    g.kernel[0], ", ", g.kernel[1], "]");
  TORCH_CHECK_VALUE(weight.out % groups == 0, op, ": Cout must be a multiple of groups = ", groups,
                    ", got ", weight.out);
  if (bias) {
    check_dtype(op, "bias", *bias);
    TORCH_CHECK_VALUE(bias->dim() == 1 && bias->sym_size(0) == weight.out, op,
                      ": bias must have shape (Cout,) = (", weight.out, ",), got ",
                      bias->sym_sizes());
    TORCH_CHECK_VALUE(bias->device() == x.device(), op, ": bias must be on x's device ", x.device(),
                      ", got ", bias->device());
  }
  return g;
}

void check_weight(const char* op, const at::Tensor& x, const at::Tensor& weight) {
  check_dtype(op, "weight", weight);
  TORCH_CHECK_VALUE(weight.device() == x.device(), op, ": weight must be on x's device ",
                    x.device(), ", got ", weight.device());
}

void set_padding(const char* op, Geometry& g, at::IntArrayRef padding) {
  g.before = g.after = pair_of(op, "padding", padding, 0);
}

void set_padding(const char* op, Geometry& g, c10::string_view padding) {
  TORCH_CHECK_VALUE(padding == "same" || padding == "valid", op,
                    ": padding must be 'same', 'valid', an int or a pair, got '", padding, "'");
  for (int i = 0; i < 2; ++i) {
    const int64_t total = padding == "same" ? g.dilation[i] * (g.kernel[i] - 1) : 0;
    TORCH_CHECK_VALUE(padding == "valid" || g.stride[i] == 1, op,
                      ": padding 'same' needs stride 1, got ", g.stride[i]);
    g.before[i] = total / 2;
    g.after[i] = total - total / 2;
  }
}

c10::SymInt out_size(const char* op, const at::Tensor& x, const Geometry& g, int axis) {
  const c10::SymInt padded = x.sym_size(2 + axis) + g.before[axis] + g.after[axis];
  const int64_t reach = g.dilation[axis] * (g.kernel[axis] - 1) + 1;
  TORCH_CHECK_VALUE(padded >= reach, op, ": x with padding must be at least as large as the ",
                    "dilated kernel, ", reach, ", got ", padded, " along ",
                    axis == 0 ? "height" : "width");
  return (padded - reach) / g.stride[axis] + 1;
}

// --- lowering ------------------------------------------------------------------------------------

bool pointwise(const Geometry& g) {
  return g.kernel == Pair{1, 1} && g.before == Pair{0, 0} && g.after == Pair{0, 0};
}

// (B, C, H, W) -> (B, Hout * Wout, C * kh * kw): positions row-major, columns (channel, ky, kx).
at::Tensor lower(at::Tensor x, const Geometry& g) {
  if (pointwise(g)) {
    const at::Tensor strided =
        x.slice(2, 0, std::nullopt, g.stride[0]).slice(3, 0, std::nullopt, g.stride[1]);
    return strided.permute({0, 2, 3, 1}).reshape_symint({x.sym_size(0), -1, x.sym_size(1)});
  }
  Pair padding = g.before;
  if (g.before != g.after) {
    x = at::constant_pad_nd(x, {g.before[1], g.after[1], g.before[0], g.after[0]});
    padding = {0, 0};
  }
  return at::im2col(x, g.kernel, g.dilation, padding, g.stride).transpose(1, 2);
}

// Smoothing before the product, where its scales differ by batch entry: as sc_matmul's own.
at::Tensor usable_scales(const char* op, const at::Tensor& scales) {
  const at::Tensor s = scales.to(at::kFloat);
  if (s.device().is_cpu()) return check_smooth_values(op, s);
  const at::Tensor good = (s > 0).logical_and(s < std::numeric_limits<float>::infinity());
  return at::where(good, s, at::full_like(s, std::numeric_limits<float>::quiet_NaN()));
}

// Lengths of the output's positions for every channel's matmul: (B * C, positions).
at::Tensor lengths_by_channel(const char* op, const at::Tensor& lengths, const c10::SymInt& batch,
                              const c10::SymInt& channels, const c10::SymInt& positions) {
  TORCH_CHECK_VALUE(lengths.dim() == 1 && lengths.sym_size(0) == batch * positions, op,
                    ": row_stoc_len must have shape (B * Hout * Wout,) = (", batch * positions,
                    ",) in a depthwise convolution, got ", lengths.sym_sizes());
  return lengths.reshape_symint({batch, 1, positions})
      .expand_symint({batch, channels, positions})
      .reshape_symint({batch * channels, positions});
}

// One 3D product of batch B * C: every channel is a matmul of its own with one column.
at::Tensor depthwise(const char* op, const at::Tensor& x, const at::Tensor& weight,
                     const Geometry& g, MatmulArgs k, const c10::SymInt& positions) {
  TORCH_CHECK_VALUE(k.granularity == "per_row", op,
                    ": a depthwise convolution needs granularity 'per_row', got '", k.granularity,
                    "'");
  const int64_t taps = g.kernel[0] * g.kernel[1];
  TORCH_CHECK_VALUE(k.chunk_d == 0 || (k.chunk_d > 0 && taps <= k.chunk_d), op,
                    ": a depthwise convolution needs chunk_d 0 or at least kh * kw = ", taps,
                    ", got ", k.chunk_d);
  TORCH_CHECK_VALUE(k.chunk_d == 0 || !k.config, op,
                    ": a depthwise convolution takes a config of kh * kw entries with chunk_d 0, "
                    "got chunk_d ",
                    k.chunk_d);
  TORCH_CHECK_VALUE(!k.lengths.rung_table, op,
                    ": rung_table does not apply to a depthwise convolution, whose products have "
                    "one chunk; use row_stoc_len");
  k.chunk_d = 0;  // one chunk is the plain path
  const c10::SymInt batch = x.sym_size(0), channels = x.sym_size(1);
  if (k.lengths.row_stoc_len) {
    k.lengths.row_stoc_len =
        lengths_by_channel(op, *k.lengths.row_stoc_len, batch, channels, positions);
  }
  const at::Tensor one = x.reshape_symint({batch * channels, 1, x.sym_size(2), x.sym_size(3)});
  at::Tensor a = lower(one, g);  // (B * C, positions, taps)
  at::Tensor b = weight.reshape_symint({channels, taps});
  if (k.smooth_scales) {
    const at::Tensor s = usable_scales(op, *k.smooth_scales).reshape_symint({channels, taps});
    a = (a.to(at::kFloat).reshape_symint({batch, channels, positions, taps}) / s.unsqueeze(1))
            .reshape_symint({batch * channels, positions, taps});
    b = b.to(at::kFloat) * s;
  }
  b = b.unsqueeze(0).expand_symint({batch, channels, taps});
  k.smooth_scales = std::nullopt;
  return call_sc_matmul(a, b.reshape_symint({batch * channels, 1, taps}), k)
      .reshape_symint({batch, channels, positions})
      .transpose(1, 2);
}

// Rows of one group of channels: (B * positions, columns).
at::Tensor group_rows(const at::Tensor& x, const Geometry& g, int64_t group,
                      const c10::SymInt& positions) {
  const c10::SymInt channels = x.sym_size(1) / g.groups;
  const c10::SymInt rows = x.sym_size(0) * positions;
  if (channels == 0) return at::zeros_symint({rows, 0}, x.options());
  const at::Tensor part =
      g.groups == 1 ? x : x.slice_symint(1, channels * group, channels * (group + 1));
  return lower(part, g).reshape_symint({rows, channels * (g.kernel[0] * g.kernel[1])});
}

// float32 (B, Hout * Wout, Cout), without bias.
at::Tensor products(const char* op, const at::Tensor& x, const at::Tensor& weight,
                    const Geometry& g, const MatmulArgs& k, const c10::SymInt& positions) {
  const c10::SymInt in = x.sym_size(1), out = weight.sym_size(0);
  const int64_t taps = g.kernel[0] * g.kernel[1];
  const std::optional<at::Tensor>& smooth_scales = k.smooth_scales;
  if (smooth_scales) {
    TORCH_CHECK_VALUE(smooth_scales->dim() == 1 && smooth_scales->sym_size(0) == in * taps, op,
                      ": smooth_scales must have shape (Cin * kh * kw,) = (", in * taps, ",), got ",
                      smooth_scales->sym_sizes());
  }
  if (g.groups > 1 && in == g.groups && out == g.groups) {
    return depthwise(op, x, weight, g, k, positions);
  }
  const c10::SymInt width = in / g.groups * taps, out_group = out / g.groups;
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < g.groups; ++i) {
    const at::Tensor wg =
        g.groups == 1 ? weight : weight.slice_symint(0, out_group * i, out_group * (i + 1));
    MatmulArgs part = k;
    if (smooth_scales)
      part.smooth_scales = smooth_scales->slice_symint(0, width * i, width * (i + 1));
    const at::Tensor rows = group_rows(x, g, i, positions);
    parts.push_back(call_sc_matmul(rows, wg.reshape_symint({out_group, width}), part)
                        .reshape_symint({x.sym_size(0), positions, out_group}));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 2);
}

// The same with a prepared weight. With groups it is one 3D product whose batch entries are the
// groups: bits of the products of each, as rows share a scale within a batch entry at most. A
// depthwise convolution starts its groups of rows anew with every image.
at::Tensor products(const char* op, const at::Tensor& x, at::TensorList weight,
                    const PreparedArgs& k, const Geometry& g, int64_t out_group,
                    const c10::SymInt& positions) {
  const c10::SymInt batch = x.sym_size(0);
  if (g.groups == 1) {
    return call_prepared(group_rows(x, g, 0, positions), weight, k)
        .reshape_symint({batch, positions, out_group});
  }
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < g.groups; ++i) rows.push_back(group_rows(x, g, i, positions));
  const at::Tensor a = at::stack(rows);  // (groups, B * positions, columns)
  PreparedArgs args = k;
  TORCH_CHECK_VALUE(!k.lengths.rung_table, op,
                    ": rung_table does not apply to a prepared weight with groups > 1, whose "
                    "products have one chunk; use row_stoc_len");
  if (k.lengths.row_stoc_len) {
    args.lengths.row_stoc_len =
        lengths_by_channel(op, *k.lengths.row_stoc_len, 1, g.groups, batch * positions);
  }
  const bool by_image = out_group == 1 && x.sym_size(1) == g.groups && k.group_a > 1;
  std::vector<at::Tensor> images;
  const int64_t parts = by_image ? batch.guard_int(__FILE__, __LINE__) : 1;
  for (int64_t i = 0; i < parts; ++i) {
    const c10::SymInt first = by_image ? positions * i : c10::SymInt(0);
    const c10::SymInt last = by_image ? positions * (i + 1) : batch * positions;
    if (by_image && k.lengths.row_stoc_len) {
      args.lengths.row_stoc_len = lengths_by_channel(
          op, k.lengths.row_stoc_len->slice_symint(0, first, last), 1, g.groups, positions);
    }
    images.push_back(call_prepared(a.slice_symint(1, first, last), weight, args));
  }
  const at::Tensor y = images.size() == 1 ? images[0] : at::cat(images, 1);
  return y.transpose(0, 1).reshape_symint({batch, positions, g.groups * out_group});
}

// (B, Hout * Wout, Cout) to the output: bias, x's dtype and layout. What was computed lies
// channels-last.
at::Tensor finish(at::Tensor y, const at::Tensor& x, const std::optional<at::Tensor>& bias,
                  const c10::SymInt& height, const c10::SymInt& width, bool batched) {
  if (bias) y = y + bias->to(at::kFloat);
  y = y.to(x.scalar_type())
          .reshape_symint({x.sym_size(0), height, width, y.sym_size(2)})
          .permute({0, 3, 1, 2})
          .contiguous(x.suggest_memory_format());
  return batched ? y : y.squeeze(0);
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
  const at::Tensor x = as_batch(op, input);
  const std::optional<at::Tensor> bias = present(given_bias);
  const WeightShape shape = shape_of(op, weight);
  check_weight(op, x, weight);
  Geometry g = check(op, x, shape, bias, stride, dilation, groups);
  set_padding(op, g, padding);
  const c10::SymInt height = out_size(op, x, g, 0), width = out_size(op, x, g, 1);
  const MatmulArgs args{granularity,
                        mode,
                        sc_prec,
                        {stoc_len, present(row_stoc_len), present(rung_table), level_lens},
                        chunk_d,
                        group_a,
                        group_b,
                        rng_levels,
                        config,
                        halve_bipolar_stoc_len,
                        present(smooth_scales)};
  const at::Tensor y = products(op, x, weight, g, args, height * width);
  return finish(y, x, bias, height, width, input.dim() == 4);
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
  Geometry g = check(op, x, shape_of(op, *spec), bias, stride, dilation, spec->batches());
  set_padding(op, g, padding);
  const c10::SymInt height = out_size(op, x, g, 0), width = out_size(op, x, g, 1);
  const PreparedArgs args{
      text, group_a, {stoc_len, present(row_stoc_len), present(rung_table), level_lens}};
  const at::Tensor y = products(op, x, weight, args, g, spec->rows(), height * width);
  return finish(y, x, bias, height, width, input.dim() == 4);
}

template <typename Padding>
at::Tensor conv2d_lowered_rows(const at::Tensor& input, const at::Tensor& weight,
                               at::IntArrayRef stride, Padding padding, at::IntArrayRef dilation) {
  const char* op = "conv2d_lowered_rows";
  const at::Tensor x = as_batch(op, input);
  const WeightShape shape = shape_of(op, weight);
  check_weight(op, x, weight);
  Geometry g = check(op, x, shape, std::nullopt, stride, dilation, 1);
  set_padding(op, g, padding);
  const c10::SymInt rows = x.sym_size(0) * out_size(op, x, g, 0) * out_size(op, x, g, 1);
  const c10::SymInt columns = x.sym_size(1) * g.kernel[0] * g.kernel[1];
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
