#include "ops/cuda/matmul_problem.h"

#include <ATen/cuda/CUDAContext.h>

#include "gemm/cuda/mma_b1.h"
#include "ops/cuda/device_streams.h"
#include "ops/smooth_scales.h"
#include "ops/value_error.h"

namespace scmp::cuda {
namespace {

int64_t code_count(const QuantizeArgs& args) {
  const StageLayout& l = args.layout;
  return args.output == Output::staged_cycles
             ? args.source.batches * l.stages * l.rows_padded * l.positions
             : args.source.total_rows() * args.source.dim;
}

}  // namespace

StageLayout stage_layout(int64_t rows, const MatmulPlan& plan, int positions) {
  StageLayout layout;
  layout.rows_padded = (rows + 7) / 8 * 8;
  layout.positions = positions;
  layout.stages_per_chunk = (plan.chunk + positions - 1) / positions;
  layout.stages = layout.stages_per_chunk * plan.chunks;
  return layout;
}

namespace {

QuantizeArgs staged_args(const at::Tensor& x, const Grouping& grouping, const MatmulKnobs& knobs,
                         const MatmulPlan& plan, const DeviceTables& tables,
                         const uint16_t* cycles) {
  QuantizeArgs args = operand_args(x, plan.scheme, grouping, knobs.levels);
  args.output = Output::staged_cycles;
  args.layout = stage_layout(args.source.rows, plan, mma_b1_positions(tables.words));
  args.cycles = cycles;
  args.lane_of = tables.lane_of;
  args.lanes = tables.lanes;
  return args;
}

// As many cycles as ones, in the order of b's values.
const uint16_t* cycles_of_b(const DeviceTables& tables) {
  return tables.ones_are_codes ? nullptr : tables.b_ones;
}

}  // namespace

QuantizeArgs a_args(const at::Tensor& a, const MatmulKnobs& knobs, const MatmulPlan& plan,
                    const DeviceTables& tables, const Window& window) {
  QuantizeArgs args = staged_args(a, plan.a_grouping, knobs, plan, tables, tables.a_cycles);
  args.window = window;
  return args;
}

QuantizeArgs code_args(const at::Tensor& x, const Grouping& grouping, const MatmulKnobs& knobs,
                       const MatmulPlan& plan) {
  QuantizeArgs args = operand_args(x, plan.scheme, grouping, knobs.levels);
  args.output = Output::signed_codes;
  return args;
}

QuantizeArgs column_args(const at::Tensor& x, const Grouping& grouping, const MatmulKnobs& knobs,
                         const MatmulPlan& plan) {
  QuantizeArgs args = code_args(x, grouping, knobs, plan);
  args.scales_transposed = true;
  return args;
}

QuantizeArgs staged_b_args(const at::Tensor& b, const MatmulKnobs& knobs, const MatmulPlan& plan,
                           const DeviceTables& tables) {
  return staged_args(b, plan.b_grouping, knobs, plan, tables, cycles_of_b(tables));
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

void sync_check(const char* op, const MatmulKnobs& knobs, const at::Tensor& scales) {
  if (!knobs.sync_checks) return;
  refuse_capture(op);
  check_smooth_values(op, scales);
}

OperandParts::OperandParts(Workspace& workspace, const QuantizeArgs& args) {
  const int64_t rows = args.source.total_rows();
  codes = workspace.reserve(code_count(args) * sizeof(int16_t));
  scales = workspace.reserve(rows * args.chunks * sizeof(float));
  const int64_t unipolar_rows = args.scheme.unipolar ? rows : 0;
  zeros = workspace.reserve(unipolar_rows * sizeof(float));
  sums = workspace.reserve(unipolar_rows * sizeof(float));
  map = workspace.reserve(2 * sizeof(double));
}

void OperandParts::point(const Workspace& workspace, bool tensor, QuantizeArgs& args) const {
  args.codes = workspace.at<int16_t>(codes);
  args.scales = workspace.at<float>(scales);
  if (args.scheme.unipolar) {
    args.zeros = workspace.at<float>(zeros);
    args.sums = workspace.at<float>(sums);
  }
  if (tensor) args.tensor_map = workspace.at<double>(map);
}

OperandB::OperandB(const QuantizeArgs& b)
    : rows(b.source.rows),
      codes(b.codes),
      scales(b.scales),
      zeros(b.zeros),
      sums(b.sums),
      map(b.tensor_map) {}

OperandB::OperandB(const Prepared& b)
    : rows(b.codes.size(-2)),
      codes(b.codes.const_data_ptr<int16_t>()),
      scales(b.scales.const_data_ptr<float>()),
      zeros(b.zero_points.const_data_ptr<float>()),
      sums(b.level_sums.const_data_ptr<float>()),
      map(b.tensor_map.const_data_ptr<double>()) {}

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

GemmProblem make_exchanged_problem(const QuantizeArgs& staged_b, const QuantizeArgs& a_columns,
                                   const MatmulKnobs& knobs, const MatmulPlan& plan,
                                   const DeviceTables& tables, float* out) {
  DeviceTables of_a = tables;
  of_a.b_bits = tables.a_bits;
  of_a.ones_are_codes = tables.a_cycles == nullptr;
  GemmProblem p = make_problem(staged_b, OperandB(a_columns), knobs, plan, of_a, out);
  p.transposed = true;
  return p;
}

QuantizedB quantized_b(const Prepared& b, const MatmulKnobs& knobs, const MatmulPlan& plan,
                       const DeviceTables& tables) {
  QuantizedB args;
  args.batches = b.codes.dim() == 3 ? b.codes.size(0) : 1;
  args.rows = b.codes.size(-2);
  args.columns = b.codes.size(-1);
  args.chunk = plan.chunk;
  args.chunks = plan.chunks;
  args.codes = b.codes.const_data_ptr<int16_t>();
  args.scales = b.scales.const_data_ptr<float>();
  args.levels = knobs.levels;
  args.lane_of = tables.lane_of;
  args.lanes = tables.lanes;
  return args;
}

QuantizeArgs as_cycles(const QuantizedB& b, const StageLayout& layout) {
  QuantizeArgs args;
  args.source.batches = b.batches;
  args.source.rows = b.rows;
  args.source.dim = b.columns;
  args.layout = layout;
  args.codes = b.staged;
  args.scales = b.row_scales;
  return args;
}

StagedB::StagedB(Workspace& workspace, const Prepared& b, const MatmulKnobs& knobs,
                 const MatmulPlan& plan, const DeviceTables& tables) {
  static_cast<QuantizedB&>(args_) = quantized_b(b, knobs, plan, tables);
  args_.cycles = cycles_of_b(tables);
  args_.layout = stage_layout(args_.rows, plan, mma_b1_positions(tables.words));
  const StageLayout& l = args_.layout;
  codes_ =
      workspace.reserve(args_.batches * l.stages * l.rows_padded * l.positions * sizeof(int16_t));
  scales_ = workspace.reserve(args_.batches * args_.rows * args_.chunks * sizeof(float));
}

QuantizeArgs StagedB::stage(const Workspace& workspace) {
  args_.staged = workspace.at<int16_t>(codes_);
  args_.row_scales = workspace.at<float>(scales_);
  stage_codes(args_, at::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return as_cycles(args_, args_.layout);
}

UnquantizedB unquantized_b(const at::Tensor& b, const MatmulKnobs& knobs,
                           const std::optional<at::Tensor>& smooth_scales) {
  UnquantizedB result{empty_prepared(b, knobs, smooth_scales.has_value()), {}};
  Prepared& out = result.b;
  if (smooth_scales) out.smooth_scales.copy_(*smooth_scales);
  const MatmulPlan plan = plan_sc_matmul(knobs, b.size(-1));
  QuantizeArgs& args = result.work;
  args = column_args(b, plan.b_grouping, knobs, plan);
  if (smooth_scales) set_smoothing(args, *smooth_scales, Smoothing::multiply);
  args.codes = out.codes.mutable_data_ptr<int16_t>();
  args.scales = out.scales.mutable_data_ptr<float>();
  if (out.zero_points.numel() > 0) args.zeros = out.zero_points.mutable_data_ptr<float>();
  if (out.level_sums.numel() > 0) args.sums = out.level_sums.mutable_data_ptr<float>();
  if (out.tensor_map.numel() > 0) args.tensor_map = out.tensor_map.mutable_data_ptr<double>();
  return result;
}

Prepared quantize_b(const char* op, const at::Tensor& b, const MatmulKnobs& knobs,
                    const std::optional<at::Tensor>& smooth_scales) {
  UnquantizedB result = unquantized_b(b, knobs, smooth_scales);
  Workspace workspace;
  const RangeKeys keys(workspace, &result.work, 1);
  workspace.allocate(b);
  with_value_errors(op, [&] { keys.quantize(workspace, &result.work, 1); });
  return result.b;
}

}  // namespace scmp::cuda
