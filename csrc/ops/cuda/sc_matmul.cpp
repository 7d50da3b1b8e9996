// sc_matmul on CUDA: quantize the operands in one launch, then the gemm.
#include "ops/sc_matmul.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "gemm/cuda/mma_b1.h"
#include "ops/cuda/device_streams.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/operand.h"
#include "ops/smooth_scales.h"
#include "ops/value_error.h"

namespace scmp::cuda {
namespace {

StageLayout stage_layout(int64_t rows, const MatmulPlan& plan, int positions) {
  StageLayout layout;
  layout.rows_padded = (rows + 7) / 8 * 8;
  layout.positions = positions;
  layout.stages_per_chunk = (plan.chunk + positions - 1) / positions;
  layout.stages = layout.stages_per_chunk * plan.chunks;
  return layout;
}

QuantizeArgs a_args(const at::Tensor& a, const MatmulKnobs& knobs, const MatmulPlan& plan,
                    const DeviceTables& tables) {
  QuantizeArgs args = operand_args(a, plan.scheme, plan.a_grouping, knobs.levels);
  args.output = Output::staged_cycles;
  args.layout = stage_layout(args.source.rows, plan, mma_b1_positions(tables.words));
  args.cycles = tables.a_cycles;
  args.lane_of = tables.lane_of;
  args.lanes = tables.lanes;
  return args;
}

QuantizeArgs b_args(const at::Tensor& b, const MatmulKnobs& knobs, const MatmulPlan& plan) {
  QuantizeArgs args = operand_args(b, plan.scheme, plan.b_grouping, knobs.levels);
  args.output = Output::signed_codes;
  args.scales_transposed = true;
  return args;
}

void set_smoothing(QuantizeArgs& args, const at::Tensor& scales, Smoothing smoothing) {
  args.source.smoothing = smoothing;
  args.smooth_dtype = dtype_of(scales);
  args.smooth_scales = scales.const_data_ptr();
  args.smooth_stride = scales.stride(0);
}

void refuse_capture(const char* op) {
  TORCH_CHECK_VALUE(!capturing(), op,
                    ": SCMP_SYNC_CHECKS=1 syncs, which a CUDA graph capture cannot; unset it");
}

// With SCMP_SYNC_CHECKS=1: values that only the device knows, checked as on the CPU.
void sync_check(const char* op, const MatmulKnobs& knobs, const at::Tensor& scales) {
  if (!knobs.sync_checks) return;
  refuse_capture(op);
  check_smooth_values(op, scales);
}

int64_t code_count(const QuantizeArgs& args) {
  const StageLayout& l = args.layout;
  return args.output == Output::staged_cycles
             ? args.source.batches * l.stages * l.rows_padded * l.positions
             : args.source.total_rows() * args.source.dim;
}

// Where one operand's results lie in the workspace.
struct OperandParts {
  size_t codes, scales, zeros, sums, map;

  OperandParts(Workspace& workspace, const QuantizeArgs& args) {
    const int64_t rows = args.source.total_rows();
    codes = workspace.reserve(code_count(args) * sizeof(int16_t));
    scales = workspace.reserve(rows * args.chunks * sizeof(float));
    const int64_t unipolar_rows = args.scheme.unipolar ? rows : 0;
    zeros = workspace.reserve(unipolar_rows * sizeof(float));
    sums = workspace.reserve(unipolar_rows * sizeof(float));
    map = workspace.reserve(2 * sizeof(double));
  }

  void point(const Workspace& workspace, bool tensor, QuantizeArgs& args) const {
    args.codes = workspace.at<int16_t>(codes);
    args.scales = workspace.at<float>(scales);
    if (args.scheme.unipolar) {
      args.zeros = workspace.at<float>(zeros);
      args.sums = workspace.at<float>(sums);
    }
    if (tensor) args.tensor_map = workspace.at<double>(map);
  }
};

// Where b's codes and scales lie, quantized in this call or before it.
struct OperandB {
  int64_t rows;
  const int16_t* codes;
  const float *scales, *zeros, *sums;
  const double* map;

  explicit OperandB(const QuantizeArgs& b)
      : rows(b.source.rows),
        codes(b.codes),
        scales(b.scales),
        zeros(b.zeros),
        sums(b.sums),
        map(b.tensor_map) {}
  explicit OperandB(const Prepared& b)
      : rows(b.codes.size(-2)),
        codes(b.codes.const_data_ptr<int16_t>()),
        scales(b.scales.const_data_ptr<float>()),
        zeros(b.zero_points.const_data_ptr<float>()),
        sums(b.level_sums.const_data_ptr<float>()),
        map(b.tensor_map.const_data_ptr<double>()) {}
};

GemmProblem make_problem(const QuantizeArgs& a, const OperandB& b, const MatmulKnobs& knobs,
                         const MatmulPlan& plan, const DeviceTables& tables, float* out) {
  GemmProblem p;
  p.batches = a.source.batches;
  p.n = a.source.rows;
  p.m = b.rows;
  p.d = a.source.dim;
  p.chunk = plan.chunk;
  p.chunks = plan.chunks;
  p.unipolar = knobs.unipolar;
  p.a_layout = a.layout;
  p.a_cycles = a.codes;
  p.b_codes = b.codes;
  p.tables = tables;
  p.a_tensor = a.tensor_map;
  p.b_tensor = b.map;
  p.out = out;
  Dequantizer& q = p.dequantizer;
  q = make_dequantizer(knobs, plan, p.d);
  q.n = p.n;
  q.m = p.m;
  q.a_scale = a.scales;
  q.b_scale = b.scales;
  q.a_zeros = a.zeros;
  q.b_zeros = b.zeros;
  q.a_sum = a.sums;
  q.b_sum = b.sums;
  return p;
}

// The kernels read pairs and more at once: a view into the middle of another tensor is copied.
at::Tensor aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 ? x : x.clone();
}

at::Tensor sc_matmul_cuda(const at::Tensor& a, const at::Tensor& b, c10::string_view granularity,
                          c10::string_view mode, int64_t sc_prec, std::optional<int64_t> stoc_len,
                          int64_t chunk_d, int64_t group_a, int64_t group_b,
                          std::optional<int64_t> rng_levels, std::optional<c10::string_view> config,
                          bool halve_bipolar_stoc_len,
                          const std::optional<at::Tensor>& smooth_scales) {
  const MatmulKnobs knobs =  // before the guard: a may be on another kind of device
      check_sc_matmul("sc_matmul", a, b,
                      {granularity, mode, sc_prec, stoc_len, chunk_d, group_a, group_b, rng_levels,
                       config, halve_bipolar_stoc_len, smooth_scales});
  const c10::cuda::CUDAGuard guard(a.device());
  const bool smooth = smooth_scales && smooth_scales->defined();
  if (smooth) sync_check("sc_matmul", knobs, *smooth_scales);
  at::Tensor out = make_output(a, b.size(-2));
  if (out.numel() == 0 || a.size(-1) == 0) return out;

  const MatmulPlan plan = plan_sc_matmul(knobs, a.size(-1));
  const auto streams = device_streams(plan.streams);
  QuantizeArgs operands[2] = {a_args(a, knobs, plan, streams->tables), b_args(b, knobs, plan)};
  if (smooth) {
    set_smoothing(operands[0], *smooth_scales, Smoothing::divide);
    set_smoothing(operands[1], *smooth_scales, Smoothing::multiply);
  }
  Workspace workspace;
  const RangeKeys keys(workspace, operands, 2);
  const bool tensor = knobs.granularity == Granularity::per_tensor;
  const OperandParts parts[2] = {{workspace, operands[0]}, {workspace, operands[1]}};
  workspace.allocate(a);
  for (int i = 0; i < 2; ++i) parts[i].point(workspace, tensor, operands[i]);
  with_value_errors("sc_matmul", [&] {
    keys.quantize(workspace, operands, 2);
    run_gemm(make_problem(operands[0], OperandB(operands[1]), knobs, plan, streams->tables,
                          out.mutable_data_ptr<float>()),
             a, {});
  });
  return out;
}

at::Tensor sc_matmul_prepared_cuda(const at::Tensor& a, at::TensorList b, c10::string_view spec,
                                   int64_t group_a, std::optional<int64_t> stoc_len) {
  PreparedCall call = check_prepared(a, b, spec, group_a, stoc_len);
  const c10::cuda::CUDAGuard guard(a.device());
  call.b.scales = aligned(call.b.scales);
  call.b.tensor_map = aligned(call.b.tensor_map);
  if (call.b.expanded.defined()) call.b.expanded = aligned(call.b.expanded);
  const MatmulKnobs& knobs = call.knobs;
  if (call.spec->smooth) sync_check("sc_matmul", knobs, call.b.smooth_scales);
  if (knobs.sync_checks) {
    refuse_capture("sc_matmul");
    check_codes("sc_matmul", call.b.codes.to(at::kCPU), knobs);
  }
  at::Tensor out = make_output(a, call.spec->rows());
  if (out.numel() == 0 || a.size(-1) == 0) return out;

  const MatmulPlan plan = plan_sc_matmul(knobs, a.size(-1));
  const auto streams = device_streams(plan.streams);
  QuantizeArgs operand = a_args(a, knobs, plan, streams->tables);
  if (call.spec->smooth) set_smoothing(operand, call.b.smooth_scales, Smoothing::divide);
  Workspace workspace;
  const RangeKeys keys(workspace, &operand, 1);
  const OperandParts parts(workspace, operand);
  operand.cleared_bytes = operand.source.batches * call.spec->rows();
  const size_t flags = workspace.reserve(operand.cleared_bytes);
  workspace.allocate(a);
  parts.point(workspace, knobs.granularity == Granularity::per_tensor, operand);
  operand.cleared = workspace.at<uint8_t>(flags);
  with_value_errors("sc_matmul", [&] {
    keys.quantize(workspace, &operand, 1);
    GemmProblem problem = make_problem(operand, OperandB(call.b), knobs, plan, streams->tables,
                                       out.mutable_data_ptr<float>());
    problem.damaged = operand.cleared;
    // Bits were expanded for the length that a call has when it names none.
    run_gemm(problem, a, stoc_len ? at::Tensor() : call.b.expanded);
  });
  return out;
}

// The bits of a prepared b for calls of the default length; (0,) where no kernel here reads them.
at::Tensor expand(const Prepared& b, const MatmulKnobs& knobs) {
  const MatmulPlan plan = plan_sc_matmul(knobs, b.codes.size(-1));
  const auto streams = device_streams(plan.streams);
  QuantizeArgs a;  // only its layout counts
  a.source.batches = b.codes.dim() == 3 ? b.codes.size(0) : 1;
  a.source.rows = 1;
  a.source.dim = b.codes.size(-1);
  a.layout = stage_layout(1, plan, mma_b1_positions(streams->tables.words));
  return expand_bits(make_problem(a, OperandB(b), knobs, plan, streams->tables, nullptr), b.codes);
}

std::vector<at::Tensor> prepare_cuda(const at::Tensor& b, c10::string_view granularity,
                                     c10::string_view mode, int64_t sc_prec, int64_t chunk_d,
                                     int64_t group_b, std::optional<int64_t> rng_levels,
                                     std::optional<c10::string_view> config,
                                     bool halve_bipolar_stoc_len,
                                     const std::optional<at::Tensor>& smooth_scales,
                                     bool with_bits) {
  const MatmulKnobs knobs =
      check_prepare("prepare", b,
                    {granularity, mode, sc_prec, std::nullopt, chunk_d, 1, group_b, rng_levels,
                     config, halve_bipolar_stoc_len, smooth_scales});
  const c10::cuda::CUDAGuard guard(b.device());
  const bool smooth = smooth_scales && smooth_scales->defined();
  Prepared out = empty_prepared(b, knobs, smooth);
  if (smooth) {
    sync_check("prepare", knobs, *smooth_scales);
    out.smooth_scales.copy_(*smooth_scales);
  }
  if (b.numel() == 0) {  // never multiplied
    for (const at::Tensor& part : {out.scales, out.zero_points, out.level_sums, out.tensor_map}) {
      part.zero_();
    }
    return out.list();
  }
  const MatmulPlan plan = plan_sc_matmul(knobs, b.size(-1));
  QuantizeArgs args = b_args(b, knobs, plan);
  if (smooth) set_smoothing(args, *smooth_scales, Smoothing::multiply);
  args.codes = out.codes.mutable_data_ptr<int16_t>();
  args.scales = out.scales.mutable_data_ptr<float>();
  if (out.zero_points.numel() > 0) args.zeros = out.zero_points.mutable_data_ptr<float>();
  if (out.level_sums.numel() > 0) args.sums = out.level_sums.mutable_data_ptr<float>();
  if (out.tensor_map.numel() > 0) args.tensor_map = out.tensor_map.mutable_data_ptr<double>();
  Workspace workspace;
  const RangeKeys keys(workspace, &args, 1);
  workspace.allocate(b);
  with_value_errors("prepare", [&] { keys.quantize(workspace, &args, 1); });
  if (with_bits) out.expanded = expand(out, knobs);
  return out.list();
}

at::Tensor expand_prepared_cuda(at::TensorList b, c10::string_view spec) {
  const PreparedCall call = check_prepared_b("sc_matmul", b, spec, 1, std::nullopt);
  const c10::cuda::CUDAGuard guard(call.b.codes.device());
  return call.b.codes.numel() == 0 ? at::empty({0}, call.b.codes.options().dtype(at::kByte))
                                   : expand(call.b, call.knobs);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CUDA, m) {
  m.impl("sc_matmul", sc_matmul_cuda);
  m.impl("sc_matmul.prepared", sc_matmul_prepared_cuda);
  m.impl("prepare", prepare_cuda);
  m.impl("expand_prepared", expand_prepared_cuda);
}

}  // namespace scmp::cuda
