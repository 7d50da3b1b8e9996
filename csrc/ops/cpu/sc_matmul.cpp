// sc_matmul on the CPU: quantize both operands (or take b prepared), count, dequantize.
#include "ops/sc_matmul.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "cache/stream_cache.h"
#include "gemm/cpu/gemm_cpu.h"
#include "gemm/cpu/row_lengths.h"
#include "ops/cpu/tensor_source.h"
#include "ops/smooth_scales.h"

namespace scmp {
namespace {

// b as the gemm and its epilogue read it.
struct OperandB {
  int64_t rows = 0;
  const int16_t* codes = nullptr;                      // (batches, rows, depth)
  const float* scales = nullptr;                       // (batches, chunks, rows)
  const float* zero_points = nullptr;                  // (batches, rows), per_row unipolar
  const float* level_sums = nullptr;                   // (batches, rows), unipolar
  double tensor_scale = 0.0, tensor_zero_point = 0.0;  // per_tensor
};

void write_zero_points(const RowAffines& affines, float* out) {
  for (size_t i = 0; i < affines.affine.size(); ++i) out[i] = affines.affine[i].zero_point;
}

void write_scales(const RowAffines& affines, int64_t batches, int64_t rows, float* out) {
  for (int64_t row = 0; row < batches * rows; ++row) {
    const int64_t batch = row / rows, within = row % rows;
    for (int64_t chunk = 0; chunk < affines.chunks; ++chunk) {
      out[(batch * affines.chunks + chunk) * rows + within] = affines.at(row, chunk).scale;
    }
  }
}

// A quantized b and its view.
struct QuantizedB {
  QuantizedOperand operand;
  Buffer<float> scales, zero_points;
  OperandB view;

  QuantizedB(const Source& source, const MatmulKnobs& knobs, const MatmulPlan& plan) {
    operand = quantize_operand(source, plan.scheme, plan.b_grouping, knobs.levels, parallel_for);
    view.rows = source.rows;
    view.codes = operand.codes.data();
    view.level_sums = operand.level_sum.data();
    if (knobs.granularity == Granularity::per_tensor) {
      view.tensor_scale = operand.affines.affine[0].scale64;
      view.tensor_zero_point = operand.affines.affine[0].zero_point64;
      return;
    }
    scales = Buffer<float>(operand.affines.affine.size());
    write_scales(operand.affines, source.batches, source.rows, scales.data());
    view.scales = scales.data();
    if (knobs.unipolar) {
      zero_points = Buffer<float>(operand.affines.affine.size());
      write_zero_points(operand.affines, zero_points.data());
      view.zero_points = zero_points.data();
    }
  }
};

OperandB view_of(const Prepared& b) {
  OperandB view;
  view.rows = b.codes.size(-2);
  view.codes = b.codes.const_data_ptr<int16_t>();
  view.scales = b.scales.const_data_ptr<float>();
  view.zero_points = b.zero_points.const_data_ptr<float>();
  view.level_sums = b.level_sums.const_data_ptr<float>();
  if (b.tensor_map.numel() > 0) {
    view.tensor_scale = b.tensor_map.const_data_ptr<double>()[0];
    view.tensor_zero_point = b.tensor_map.const_data_ptr<double>()[1];
  }
  return view;
}

void smooth(Source& source, Smoothing smoothing, const at::Tensor& scales) {
  source.smoothing = smoothing;
  source.smooth_scales = scales.const_data_ptr<float>();
}

// Quantizes a and multiplies; `out` has elements and depth is not 0. Where rows have lengths of
// their own, `lengths` holds them by row and chunk, and `out` is zeros.
void multiply(const Source& a, const OperandB& b, const MatmulKnobs& knobs, const MatmulPlan& plan,
              const int16_t* lengths, float* out) {
  const QuantizedOperand qa =
      quantize_operand(a, plan.scheme, plan.a_grouping, knobs.levels, parallel_for);
  GemmProblem problem;
  problem.batches = a.batches;
  problem.n = a.rows;
  problem.m = b.rows;
  problem.d = a.dim;
  problem.chunk = plan.chunk;
  problem.chunks = plan.chunks;
  problem.unipolar = knobs.unipolar;
  problem.a_codes = qa.codes.data();
  problem.b_codes = b.codes;
  problem.out = out;

  Dequantizer& q = problem.dequantizer;
  q = make_dequantizer(knobs, plan, a.dim);
  q.n = problem.n;
  q.m = problem.m;
  q.a_sum = qa.level_sum.data();
  q.b_sum = b.level_sums;
  Buffer<float> a_scales, a_zero_points;
  if (knobs.granularity == Granularity::per_tensor) {
    const Affine& map = qa.affines.affine[0];
    q.tensor_scale = static_cast<float>(map.scale64 * b.tensor_scale);
    q.a_zero = map.zero_point;
    q.b_zero = static_cast<float>(b.tensor_zero_point);
    q.zero_product =
        static_cast<float>(static_cast<double>(a.dim) * map.zero_point64 * b.tensor_zero_point);
  } else {
    a_scales = Buffer<float>(qa.affines.affine.size());
    for (size_t i = 0; i < a_scales.size(); ++i) a_scales[i] = qa.affines.affine[i].scale;
    q.a_scale = a_scales.data();
    q.b_scale = b.scales;
    if (knobs.unipolar) {
      a_zero_points = Buffer<float>(qa.affines.affine.size());
      write_zero_points(qa.affines, a_zero_points.data());
      q.a_zeros = a_zero_points.data();
      q.b_zeros = b.zero_points;
    }
  }
  const CpuKernel kernel = current_cpu_kernel();
  if (lengths) return row_lengths_gemm(problem, plan.streams, lengths, kernel, parallel_for);
  const auto streams = cached_streams(plan.streams);
  problem.streams = streams.get();
  problem.stream_key = stream_key(plan.streams);
  cpu_gemm(problem, kernel, parallel_for);
}

// Checked lengths by row and chunk; empty where all rows have one.
Buffer<int16_t> row_lengths(const LengthArgs& lengths, const Source& a, const MatmulKnobs& knobs) {
  if (!knobs.by_row) return {};
  return host_row_lengths("sc_matmul", lengths, a.total_rows(), chunk_count(a.dim, knobs.chunk_d),
                          knobs.longest);
}

at::Tensor sc_matmul_cpu(const at::Tensor& a, const at::Tensor& b, const MatmulArgs& args) {
  const MatmulKnobs knobs = check_sc_matmul("sc_matmul", a, b, args);
  Source source_a = source_of(a), source_b = source_of(b);
  at::Tensor scales;
  if (args.smooth_scales) {
    scales = check_smooth_values("sc_matmul", *args.smooth_scales);
    smooth(source_a, Smoothing::divide, scales);
    smooth(source_b, Smoothing::multiply, scales);
  }
  const Buffer<int16_t> lengths = row_lengths(args.lengths, source_a, knobs);
  at::Tensor out = make_output(a, source_b.rows, knobs.by_row);
  if (out.numel() == 0 || source_a.dim == 0) return out;
  const MatmulPlan plan = plan_sc_matmul(knobs, source_a.dim);
  const QuantizedB quantized(source_b, knobs, plan);
  multiply(source_a, quantized.view, knobs, plan, lengths.data(), out.mutable_data_ptr<float>());
  return out;
}

std::vector<at::Tensor> prepare_cpu(const at::Tensor& b, const MatmulArgs& args,
                                    bool /*expand: the CPU kernels read codes*/) {
  const MatmulKnobs knobs = check_prepare("prepare", b, args);
  const std::optional<at::Tensor>& smooth_scales = args.smooth_scales;
  const bool smoothed = smooth_scales.has_value();
  Prepared out = empty_prepared(b, knobs, smoothed);
  Source source = source_of(b);
  if (smoothed) {
    out.smooth_scales.copy_(check_smooth_values("prepare", *smooth_scales));
    smooth(source, Smoothing::multiply, out.smooth_scales);
  }
  if (source.dim == 0 || source.total_rows() == 0) {  // never multiplied
    for (const at::Tensor& part : {out.scales, out.zero_points, out.level_sums, out.tensor_map}) {
      part.zero_();
    }
    return out.list();
  }
  const MatmulPlan plan = plan_sc_matmul(knobs, source.dim);
  const QuantizedOperand q =
      quantize_operand(source, plan.scheme, plan.b_grouping, knobs.levels, parallel_for);
  std::copy_n(q.codes.data(), q.codes.size(), out.codes.mutable_data_ptr<int16_t>());
  if (knobs.unipolar) {
    std::copy_n(q.level_sum.data(), q.level_sum.size(), out.level_sums.mutable_data_ptr<float>());
  }
  if (knobs.granularity == Granularity::per_tensor) {
    const Affine& map = q.affines.affine[0];
    out.scales.fill_(map.scale);
    out.tensor_map.mutable_data_ptr<double>()[0] = map.scale64;
    out.tensor_map.mutable_data_ptr<double>()[1] = map.zero_point64;
  } else {
    write_scales(q.affines, source.batches, source.rows, out.scales.mutable_data_ptr<float>());
    if (knobs.unipolar) write_zero_points(q.affines, out.zero_points.mutable_data_ptr<float>());
  }
  return out.list();
}

at::Tensor sc_matmul_prepared_cpu(const at::Tensor& a, at::TensorList b, const PreparedArgs& args) {
  const PreparedCall call = check_prepared(a, b, args);
  check_codes("sc_matmul", call.b.codes, call.knobs);
  Source source = source_of(a);
  at::Tensor scales;
  if (call.spec->smooth) {
    scales = check_smooth_values("sc_matmul", call.b.smooth_scales);
    smooth(source, Smoothing::divide, scales);
  }
  const Buffer<int16_t> lengths = row_lengths(args.lengths, source, call.knobs);
  at::Tensor out = make_output(a, call.spec->rows(), call.knobs.by_row);
  if (out.numel() == 0 || source.dim == 0) return out;
  const MatmulPlan plan = plan_sc_matmul(call.knobs, source.dim);
  multiply(source, view_of(call.b), call.knobs, plan, lengths.data(),
           out.mutable_data_ptr<float>());
  return out;
}

at::Tensor expand_prepared_cpu(at::TensorList b, c10::string_view spec) {
  const PreparedCall call = check_prepared_b("sc_matmul", b, {spec, 1, {}});
  return at::empty({0}, call.b.codes.options().dtype(at::kByte));  // the CPU kernels read codes
}

std::string prepare_spec_any(at::IntArrayRef shape, c10::string_view granularity,
                             c10::string_view mode, int64_t sc_prec, int64_t chunk_d,
                             int64_t group_b, std::optional<int64_t> rng_levels,
                             std::optional<c10::string_view> config, bool halve_bipolar_stoc_len,
                             const std::optional<at::Tensor>& smooth_scales, bool /*expand*/,
                             int64_t groups) {
  return prepare_spec(shape,
                      {granularity, mode, sc_prec, LengthArgs(), chunk_d, 1, group_b, rng_levels,
                       config, halve_bipolar_stoc_len, present(smooth_scales)},
                      groups);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CompositeExplicitAutograd, m) { m.impl("prepare_spec", prepare_spec_any); }

TORCH_LIBRARY_IMPL(scmp, CPU, m) {
  m.impl("expand_prepared", expand_prepared_cpu);
  m.impl("sc_matmul", sc_matmul_kernel<sc_matmul_cpu>);
  m.impl("sc_matmul.prepared", prepared_kernel<sc_matmul_prepared_cpu>);
  m.impl("prepare", prepare_kernel<prepare_cpu>);
}

}  // namespace scmp
