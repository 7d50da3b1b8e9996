#include "conv/lowering.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/im2col.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <vector>

#include "common/error.h"
#include "ops/smooth_scales.h"

namespace scmp {

at::Tensor lower(at::Tensor x, const Geometry& g) {
  if (g.pointwise()) {
    const at::Tensor strided =
        x.slice(2, 0, std::nullopt, g.stride[0]).slice(3, 0, std::nullopt, g.stride[1]);
    return strided.permute({0, 2, 3, 1}).reshape_symint({x.sym_size(0), -1, x.sym_size(1)});
  }
  Pair padding = g.before;
  if (g.before != g.after || x.sym_size(2) == 0 || x.sym_size(3) == 0) {  // im2col takes no such x
    x = at::constant_pad_nd(x, {g.before[1], g.after[1], g.before[0], g.after[0]});
    padding = {0, 0};
  }
  return at::im2col(x, g.kernel, g.dilation, padding, g.stride).transpose(1, 2);
}

namespace {

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
at::Tensor depthwise_products(const char* op, const at::Tensor& x, const at::Tensor& weight,
                              const Geometry& g, MatmulArgs k, const c10::SymInt& positions) {
  TORCH_CHECK_VALUE(k.granularity == "per_row", op,
                    ": a depthwise convolution needs granularity 'per_row', got ",
                    in_quotes(k.granularity));
  const int64_t taps = g.taps();
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

// Rows of every group of channels: (groups, B * positions, columns).
at::Tensor group_rows(const at::Tensor& x, const Geometry& g, const c10::SymInt& positions) {
  const c10::SymInt batch = x.sym_size(0), channels = x.sym_size(1) / g.groups;
  const c10::SymInt rows = batch * positions;
  if (channels == 0) return at::zeros_symint({g.groups, rows, 0}, x.options());
  at::Tensor images = x;
  if (g.groups > 1) {  // groups before images, as images of their own
    images = x.reshape_symint({batch, g.groups, channels, x.sym_size(2), x.sym_size(3)})
                 .transpose(0, 1)
                 .reshape_symint({g.groups * batch, channels, x.sym_size(2), x.sym_size(3)});
  }
  return lower(images, g).reshape_symint({g.groups, rows, channels * g.taps()});
}

}  // namespace

void check_lowered_scales(const char* op, const std::optional<at::Tensor>& scales,
                          const c10::SymInt& in, const Geometry& g) {
  if (!scales) return;
  const c10::SymInt columns = in * g.taps();
  TORCH_CHECK_VALUE(scales->dim() == 1 && scales->sym_size(0) == columns, op,
                    ": smooth_scales must have shape (Cin * kh * kw,) = (", columns, ",), got ",
                    scales->sym_sizes());
}

at::Tensor lowered_products(const char* op, const at::Tensor& x, const at::Tensor& weight,
                            const Geometry& g, const MatmulArgs& k, const c10::SymInt& positions) {
  const c10::SymInt in = x.sym_size(1), out = weight.sym_size(0);
  const std::optional<at::Tensor>& smooth_scales = k.smooth_scales;
  check_lowered_scales(op, smooth_scales, in, g);
  if (depthwise(g, in, out)) {
    return depthwise_products(op, x, weight, g, k, positions);
  }
  const c10::SymInt in_group = in / g.groups, out_group = out / g.groups;
  const c10::SymInt width = in_group * g.taps();
  Geometry one = g;  // group by group: one's rows are there at a time
  one.groups = 1;
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < g.groups; ++i) {
    const at::Tensor wg =
        g.groups == 1 ? weight : weight.slice_symint(0, out_group * i, out_group * (i + 1));
    MatmulArgs part = k;
    if (smooth_scales)
      part.smooth_scales = smooth_scales->slice_symint(0, width * i, width * (i + 1));
    const at::Tensor xg = g.groups == 1 ? x : x.slice_symint(1, in_group * i, in_group * (i + 1));
    const at::Tensor rows = group_rows(xg, one, positions).select(0, 0);
    parts.push_back(call_sc_matmul(rows, wg.reshape_symint({out_group, width}), part)
                        .reshape_symint({x.sym_size(0), positions, out_group}));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 2);
}

// With groups it is one 3D product whose batch entries are the groups: bits of the products of
// each, as rows share a scale within a batch entry at most. A depthwise convolution starts its
// groups of rows anew with every image.
at::Tensor lowered_products(const char* op, const at::Tensor& x, at::TensorList weight,
                            const Geometry& g, const PreparedArgs& k, int64_t out_group,
                            const c10::SymInt& positions) {
  const c10::SymInt batch = x.sym_size(0);
  const at::Tensor a = group_rows(x, g, positions);
  if (g.groups == 1) {
    return call_prepared(a.select(0, 0), weight, k).reshape_symint({batch, positions, out_group});
  }
  PreparedArgs args = k;
  TORCH_CHECK_VALUE(!k.lengths.rung_table, op,
                    ": rung_table does not apply to a prepared weight with groups > 1, whose "
                    "products have one chunk; use row_stoc_len");
  if (k.lengths.row_stoc_len) {
    args.lengths.row_stoc_len =
        lengths_by_channel(op, *k.lengths.row_stoc_len, 1, g.groups, batch * positions);
  }
  const bool by_image = k.group_a > 1 && depthwise(g, x.sym_size(1), out_group * g.groups);
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

at::Tensor as_images(const at::Tensor& y, const at::Tensor& x, const c10::SymInt& height,
                     const c10::SymInt& width) {
  return y.reshape_symint({x.sym_size(0), height, width, y.sym_size(2)})
      .permute({0, 3, 1, 2})
      .contiguous(x.suggest_memory_format());
}

}  // namespace scmp
