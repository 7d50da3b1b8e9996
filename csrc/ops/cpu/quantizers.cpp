// The public quantizers on the CPU.
#include "ops/quantizers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu/tensor_source.h"
#include "quant/quantize.h"

namespace scmp {
namespace {

constexpr int64_t kGrainElements = 1 << 15;

// Calls visit(row, x, q) for every row: its values and its levels under affine_of(row).
template <typename AffineOf, typename Visit>
void for_each_row(const Source& source, const QuantScheme& scheme, const AffineOf& affine_of,
                  const Visit& visit) {
  const RowKernels& kernels = row_kernels(current_isa());
  const int64_t grain = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, source.dim));
  parallel_for(source.total_rows(), grain, [&](int64_t begin, int64_t end) {
    Buffer<float> buffer(source.dim + 1), q(source.dim + 1);
    for (int64_t row = begin; row < end; ++row) {
      const float* x = read_row(source, row, buffer.data());
      quantize_levels(kernels, scheme, affine_of(row), x, source.dim, q.data());
      visit(row, x, q.data());
    }
  });
}

// The fused quantizers are given their range: NaN and Inf elements alone become code 0.
void zero_nonfinite(const float* x, int64_t count, float* q) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) q[i] = 0.0f;
  }
}

void write_codes(const float* q, int64_t count, const BoundaryMap& boundary, int16_t* code,
                 int8_t* sign) {
  for (int64_t i = 0; i < count; ++i) {
    code[i] = static_cast<int16_t>(boundary[static_cast<int>(std::fabs(q[i]))]);
    sign[i] = static_cast<int8_t>((q[i] > 0) - (q[i] < 0));
  }
}

std::tuple<at::Tensor, at::Tensor> fused_quantize_bipolar_cpu(const at::Tensor& x, double abs_max,
                                                              int64_t sc_prec,
                                                              std::optional<int64_t> rng_levels) {
  const FusedQuant quant = check_fused_quantize_bipolar(x, abs_max, sc_prec, rng_levels);
  const Affine affine = make_tensor_affine(quant.scheme, 0.0, abs_max);
  const BoundaryMap boundary(quant.scheme.qmax, quant.levels);
  at::Tensor code = at::empty(x.sizes(), x.options().dtype(at::kShort));
  at::Tensor sign = at::empty(x.sizes(), x.options().dtype(at::kChar));
  int16_t* code_data = code.mutable_data_ptr<int16_t>();
  int8_t* sign_data = sign.mutable_data_ptr<int8_t>();
  const int64_t dim = x.size(1);
  for_each_row(
      source_of(x), quant.scheme, [&](int64_t) -> const Affine& { return affine; },
      [&](int64_t row, const float* values, float* q) {
        zero_nonfinite(values, dim, q);
        write_codes(q, dim, boundary, code_data + row * dim, sign_data + row * dim);
      });
  return {code, sign};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_quantize_bipolar_perrow_cpu(
    const at::Tensor& x, int64_t sc_prec, std::optional<int64_t> rng_levels) {
  const FusedQuant quant = check_fused_quantize_bipolar_perrow(x, sc_prec, rng_levels);
  const Source source = source_of(x);
  const RowAffines affines = find_affines(source, quant.scheme, Grouping{}, parallel_for);
  const BoundaryMap boundary(quant.scheme.qmax, quant.levels);
  at::Tensor code = at::empty(x.sizes(), x.options().dtype(at::kShort));
  at::Tensor sign = at::empty(x.sizes(), x.options().dtype(at::kChar));
  at::Tensor scale = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  int16_t* code_data = code.mutable_data_ptr<int16_t>();
  int8_t* sign_data = sign.mutable_data_ptr<int8_t>();
  float* scale_data = scale.mutable_data_ptr<float>();
  const int64_t dim = x.size(1);
  for_each_row(
      source, quant.scheme, [&](int64_t row) -> const Affine& { return affines.at(row, 0); },
      [&](int64_t row, const float*, float* q) {
        scale_data[row] = affines.at(row, 0).scale;
        write_codes(q, dim, boundary, code_data + row * dim, sign_data + row * dim);
      });
  return {code, sign, scale};
}

std::tuple<at::Tensor, std::optional<at::Tensor>> fused_quantize_unipolar_cpu(
    const at::Tensor& x, double fp_max, double fp_min, int64_t sc_prec, bool compute_sum,
    std::optional<int64_t> rng_levels) {
  const FusedQuant quant = check_fused_quantize_unipolar(x, fp_max, fp_min, sc_prec, rng_levels);
  const Affine affine = make_tensor_affine(quant.scheme, fp_min, fp_max);
  const BoundaryMap boundary(quant.scheme.qmax, quant.levels);
  at::Tensor code = at::empty(x.sizes(), x.options().dtype(at::kInt));
  std::optional<at::Tensor> row_sum;
  if (compute_sum) row_sum = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  int32_t* code_data = code.mutable_data_ptr<int32_t>();
  float* sum_data = compute_sum ? row_sum->mutable_data_ptr<float>() : nullptr;
  const int64_t dim = x.size(1);
  const RowKernels& kernels = row_kernels(current_isa());
  for_each_row(
      source_of(x), quant.scheme, [&](int64_t) -> const Affine& { return affine; },
      [&](int64_t row, const float* values, float* q) {
        zero_nonfinite(values, dim, q);
        for (int64_t i = 0; i < dim; ++i) {
          code_data[row * dim + i] = boundary[static_cast<int>(q[i])];
        }
        if (sum_data) sum_data[row] = static_cast<float>(kernels.sum(q, dim));
      });
  return {code, row_sum};
}

// Shapes of the grouped quantizers: per row, and per element.
struct GroupedOutputs {
  at::Tensor scale, q;
  explicit GroupedOutputs(const at::Tensor& x)
      : scale(at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kFloat))),
        q(at::empty(x.sizes(), x.options().dtype(at::kFloat))) {}
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_symmetric_quant_cpu(const at::Tensor& x,
                                                                           int64_t group,
                                                                           int64_t qmax) {
  const QuantScheme scheme = check_grouped_quant("grouped_symmetric_quant", x, group, qmax, false);
  const Source source = source_of(x);
  const RowAffines affines =
      find_affines(source, scheme, {Grouping::Kind::row_groups, group, 0}, parallel_for);
  GroupedOutputs out(x);
  at::Tensor sign = at::empty(x.sizes(), x.options().dtype(at::kChar));
  float* scale_data = out.scale.mutable_data_ptr<float>();
  float* q_data = out.q.mutable_data_ptr<float>();
  int8_t* sign_data = sign.mutable_data_ptr<int8_t>();
  const int64_t dim = source.dim;
  for_each_row(
      source, scheme, [&](int64_t row) -> const Affine& { return affines.at(row, 0); },
      [&](int64_t row, const float*, float* q) {
        scale_data[row] = affines.at(row, 0).scale;
        std::copy(q, q + dim, q_data + row * dim);
        for (int64_t i = 0; i < dim; ++i) sign_data[row * dim + i] = q[i] < 0 ? -1 : 1;
      });
  return {out.scale, out.q, sign};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_asymmetric_quant_cpu(const at::Tensor& x,
                                                                            int64_t group,
                                                                            int64_t qmax) {
  const QuantScheme scheme = check_grouped_quant("grouped_asymmetric_quant", x, group, qmax, true);
  const Source source = source_of(x);
  const RowAffines affines =
      find_affines(source, scheme, {Grouping::Kind::row_groups, group, 0}, parallel_for);
  GroupedOutputs out(x);
  at::Tensor zero_point = at::empty_like(out.scale);
  float* scale_data = out.scale.mutable_data_ptr<float>();
  float* zero_data = zero_point.mutable_data_ptr<float>();
  float* q_data = out.q.mutable_data_ptr<float>();
  const int64_t dim = source.dim;
  for_each_row(
      source, scheme, [&](int64_t row) -> const Affine& { return affines.at(row, 0); },
      [&](int64_t row, const float*, float* q) {
        scale_data[row] = affines.at(row, 0).scale;
        zero_data[row] = affines.at(row, 0).zero_point;
        std::copy(q, q + dim, q_data + row * dim);
      });
  return {out.scale, zero_point, out.q};
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CPU, m) {
  m.impl("fused_quantize_bipolar", fused_quantize_bipolar_cpu);
  m.impl("fused_quantize_bipolar_perrow", fused_quantize_bipolar_perrow_cpu);
  m.impl("fused_quantize_unipolar", fused_quantize_unipolar_cpu);
  m.impl("grouped_symmetric_quant", grouped_symmetric_quant_cpu);
  m.impl("grouped_asymmetric_quant", grouped_asymmetric_quant_cpu);
}

}  // namespace scmp
