// sc_matmul on the CPU: quantize both operands, count, dequantize.
#include "ops/sc_matmul.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "cache/stream_cache.h"
#include "gemm/cpu/gemm_cpu.h"
#include "ops/cpu/tensor_source.h"
#include "ops/smooth_scales.h"

namespace scmp {
namespace {

// Scales and zero points in the layout that the epilogue reads.
struct EpilogueData {
  Buffer<float> a_scale, b_scale, a_zeros, b_zeros;
};

Buffer<float> zero_points(const RowAffines& affines) {
  Buffer<float> zeros(affines.affine.size());
  for (size_t i = 0; i < zeros.size(); ++i) zeros[i] = affines.affine[i].zero_point;
  return zeros;
}

void fill_epilogue(const MatmulKnobs& knobs, const MatmulPlan& plan, const QuantizedOperand& a,
                   const QuantizedOperand& b, int64_t depth, GemmProblem& p, EpilogueData& data) {
  Dequantizer& q = p.dequantizer;
  q = make_dequantizer(knobs, plan, depth);
  q.n = p.n;
  q.m = p.m;
  q.a_sum = a.level_sum.data();
  q.b_sum = b.level_sum.data();
  if (knobs.granularity == Granularity::per_tensor) {
    const Affine &all_a = a.affines.affine[0], &all_b = b.affines.affine[0];
    q.tensor_scale = static_cast<float>(all_a.scale64 * all_b.scale64);
    q.a_zero = all_a.zero_point;
    q.b_zero = all_b.zero_point;
    q.zero_product =
        static_cast<float>(static_cast<double>(depth) * all_a.zero_point64 * all_b.zero_point64);
    return;
  }
  data.a_scale = Buffer<float>(a.affines.affine.size());
  for (size_t i = 0; i < data.a_scale.size(); ++i) data.a_scale[i] = a.affines.affine[i].scale;
  data.b_scale = Buffer<float>(b.affines.affine.size());
  for (int64_t row = 0; row < p.batches * p.m; ++row) {
    const int64_t batch = row / p.m, column = row % p.m;
    for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
      data.b_scale[(batch * p.chunks + chunk) * p.m + column] = b.affines.at(row, chunk).scale;
    }
  }
  q.a_scale = data.a_scale.data();
  q.b_scale = data.b_scale.data();
  if (knobs.unipolar) {
    data.a_zeros = zero_points(a.affines);
    data.b_zeros = zero_points(b.affines);
    q.a_zeros = data.a_zeros.data();
    q.b_zeros = data.b_zeros.data();
  }
}

at::Tensor sc_matmul_cpu(const at::Tensor& a, const at::Tensor& b, c10::string_view granularity,
                         c10::string_view mode, int64_t sc_prec, std::optional<int64_t> stoc_len,
                         int64_t chunk_d, int64_t group_a, int64_t group_b,
                         std::optional<int64_t> rng_levels, std::optional<c10::string_view> config,
                         bool halve_bipolar_stoc_len,
                         const std::optional<at::Tensor>& smooth_scales) {
  const MatmulKnobs knobs =
      check_sc_matmul("sc_matmul", a, b,
                      {granularity, mode, sc_prec, stoc_len, chunk_d, group_a, group_b, rng_levels,
                       config, halve_bipolar_stoc_len, smooth_scales});
  Source source_a = source_of(a), source_b = source_of(b);
  at::Tensor scales;
  if (smooth_scales && smooth_scales->defined()) {
    scales = check_smooth_values("sc_matmul", *smooth_scales);
    source_a.smoothing = Smoothing::divide;
    source_b.smoothing = Smoothing::multiply;
    source_a.smooth_scales = source_b.smooth_scales = scales.const_data_ptr<float>();
  }
  const int64_t depth = source_a.dim;
  auto shape = a.sizes().vec();
  shape.back() = source_b.rows;
  const auto options = a.options().dtype(at::kFloat);
  if (depth == 0) return at::zeros(shape, options);
  at::Tensor out = at::empty(shape, options);
  if (out.numel() == 0) return out;

  const MatmulPlan plan = plan_sc_matmul(knobs, depth);
  const auto streams = cached_streams(plan.streams);
  const QuantizedOperand qa =
      quantize_operand(source_a, plan.scheme, plan.a_grouping, knobs.levels, parallel_for);
  const QuantizedOperand qb =
      quantize_operand(source_b, plan.scheme, plan.b_grouping, knobs.levels, parallel_for);
  GemmProblem problem;
  problem.batches = source_a.batches;
  problem.n = source_a.rows;
  problem.m = source_b.rows;
  problem.d = depth;
  problem.chunk = plan.chunk;
  problem.chunks = plan.chunks;
  problem.unipolar = knobs.unipolar;
  problem.a_codes = qa.codes.data();
  problem.b_codes = qb.codes.data();
  problem.streams = streams.get();
  problem.stream_key = stream_key(plan.streams);
  problem.out = out.mutable_data_ptr<float>();
  EpilogueData data;
  fill_epilogue(knobs, plan, qa, qb, depth, problem, data);
  cpu_gemm(problem, current_cpu_kernel(), parallel_for);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CPU, m) { m.impl("sc_matmul", sc_matmul_cpu); }

}  // namespace scmp
