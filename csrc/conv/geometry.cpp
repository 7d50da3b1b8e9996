#include "conv/geometry.h"

#include "common/error.h"
#include "ops/tensor_checks.h"

namespace scmp {
namespace {

constexpr int64_t kMostSize = int64_t{1} << 30;  // so that sums of sizes do not overflow

Pair pair_of(const char* op, const char* name, at::IntArrayRef values, int64_t least) {
  TORCH_CHECK_VALUE(values.size() == 1 || values.size() == 2, op, ": ", name,
                    " must be an int or a pair, got ", values);
  for (int64_t value : values) {
    TORCH_CHECK_VALUE(value >= least, op, ": ", name, " must be at least ", least, ", got ",
                      values);
    TORCH_CHECK_VALUE(value <= kMostSize, op, ": ", name, " must be at most 2**30, got ", values);
  }
  return {values[0], values.back()};
}

}  // namespace

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

WeightShape shape_of(const char* op, const PreparedSpec& spec) {
  TORCH_CHECK_VALUE(!spec.kernel.empty(), op,
                    ": weight must have been prepared from a 4D weight, got one of ",
                    spec.shape.size(), "D");
  const int64_t groups = spec.batches(), taps = spec.kernel[0] * spec.kernel[1];
  return {groups * spec.rows(), spec.depth() / taps, {spec.kernel[0], spec.kernel[1]}};
}

Geometry check_geometry(const char* op, const at::Tensor& x, const WeightShape& weight,
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
  if (padding.size() == 4) {
    const Pair y = pair_of(op, "padding", padding.slice(0, 2), 0);
    const Pair x = pair_of(op, "padding", padding.slice(2, 2), 0);
    g.before = {y[0], x[0]};
    g.after = {y[1], x[1]};
  } else {
    g.before = g.after = pair_of(op, "padding", padding, 0);
  }
}

void set_padding(const char* op, Geometry& g, c10::string_view padding) {
  TORCH_CHECK_VALUE(padding == "same" || padding == "valid", op,
                    ": padding must be 'same', 'valid', an int or a pair, got ",
                    in_quotes(padding));
  for (int i = 0; i < 2; ++i) {
    TORCH_CHECK_VALUE(g.kernel[i] <= kMostSize, op, ": weight's kernel must be at most 2**30, got ",
                      g.kernel[i]);
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

}  // namespace scmp
