#include "ops/cuda/multiply.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>

#include "ops/cuda/device_streams.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/row_lengths.h"
#include "ops/value_error.h"

namespace scmp::cuda {
namespace {

// The output of a product; with image_rows as images, (images, columns, positions).
at::Tensor output_for(const at::Tensor& a, int64_t columns, int64_t image_rows) {
  if (image_rows == 0) return make_output(a, columns, /*zeroed=*/false);
  return at::empty({a.size(0) / image_rows, columns, image_rows}, a.options().dtype(at::kFloat));
}

}  // namespace

at::Tensor aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 ? x : x.clone();
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const MatmulArgs& args,
                    const MatmulKnobs& knobs, const Window& window, int64_t image_rows) {
  const c10::cuda::CUDAGuard guard(a.device());
  const std::optional<at::Tensor>& smooth_scales = args.smooth_scales;
  if (smooth_scales) sync_check("sc_matmul", knobs, *smooth_scales);
  if (knobs.by_row) {
    sync_check_lengths(a, args.lengths, knobs);
    if (a.numel() == 0 || b.numel() == 0) return make_output(a, b.size(-2), /*zeroed=*/true);
    const UnquantizedB columns = unquantized_b(b, knobs, smooth_scales);
    return multiply_by_row(a, columns.b, &columns.work, args.lengths, knobs, window);
  }
  if (a.numel() == 0 || b.numel() == 0) return make_output(a, b.size(-2), /*zeroed=*/false);

  const MatmulPlan plan = plan_sc_matmul(knobs, a.size(-1));
  const auto streams = device_streams(plan.streams);
  const DeviceTables& tables = streams->tables;
  QuantizeArgs operands[2] = {a_args(a, knobs, plan, tables, window),
                              column_args(b, plan.b_grouping, knobs, plan)};
  at::Tensor out;
  with_value_errors("sc_matmul", [&] {
    const GemmProblem usual =
        make_problem(operands[0], OperandB(operands[1]), knobs, plan, tables, nullptr);
    const bool exchanged = window.taps == 0 && better_transposed(usual);
    if (image_rows > 0 && !can_write_images(usual)) image_rows = 0;
    out = output_for(a, b.size(-2), image_rows);
    if (exchanged) {
      operands[0] = column_args(a, plan.a_grouping, knobs, plan);
      operands[1] = staged_b_args(b, knobs, plan, tables);
    }
    if (smooth_scales) {
      set_smoothing(operands[0], *smooth_scales, Smoothing::divide);
      set_smoothing(operands[1], *smooth_scales, Smoothing::multiply);
    }
    Workspace workspace;
    const RangeKeys keys(workspace, operands, 2);
    const bool tensor = knobs.granularity == Granularity::per_tensor;
    const OperandParts parts[2] = {{workspace, operands[0]}, {workspace, operands[1]}};
    workspace.allocate(a);
    for (int i = 0; i < 2; ++i) parts[i].point(workspace, tensor, operands[i]);
    keys.quantize(workspace, operands, 2);
    auto* to = out.mutable_data_ptr<float>();
    GemmProblem problem =
        exchanged ? make_exchanged_problem(operands[1], operands[0], knobs, plan, tables, to)
                  : make_problem(operands[0], OperandB(operands[1]), knobs, plan, tables, to);
    if (image_rows > 0) write_images(problem, image_rows);
    run_gemm(problem, a, {});
  });
  return out;
}

at::Tensor multiply_prepared(const at::Tensor& a, PreparedCall& call, const PreparedArgs& args,
                             const Window& window, int64_t image_rows) {
  const c10::cuda::CUDAGuard guard(a.device());
  call.b.codes = aligned(call.b.codes);
  call.b.scales = aligned(call.b.scales);
  call.b.tensor_map = aligned(call.b.tensor_map);
  if (call.b.expanded.defined()) call.b.expanded = aligned(call.b.expanded);
  const MatmulKnobs& knobs = call.knobs;
  if (call.spec->smooth) sync_check("sc_matmul", knobs, call.b.smooth_scales);
  if (knobs.sync_checks) {
    refuse_capture("sc_matmul");
    check_codes("sc_matmul", call.b.codes.to(at::kCPU), knobs);
  }
  if (knobs.by_row) {
    sync_check_lengths(a, args.lengths, knobs);
    if (a.numel() == 0 || call.b.codes.numel() == 0) {
      return make_output(a, call.spec->rows(), /*zeroed=*/true);
    }
    return multiply_by_row(a, call.b, nullptr, args.lengths, knobs, window);
  }
  if (a.numel() == 0 || call.b.codes.numel() == 0) {
    return make_output(a, call.spec->rows(), /*zeroed=*/false);
  }

  const MatmulPlan plan = plan_sc_matmul(knobs, a.size(-1));
  const auto streams = device_streams(plan.streams);
  const DeviceTables& tables = streams->tables;
  // Bits were expanded for the length that a call has when it names none.
  const at::Tensor bits = args.lengths.stoc_len ? at::Tensor() : call.b.expanded;
  QuantizeArgs operand = a_args(a, knobs, plan, tables, window);
  at::Tensor out;
  with_value_errors("sc_matmul", [&] {
    const GemmProblem usual = make_problem(operand, OperandB(call.b), knobs, plan, tables, nullptr);
    const bool exchanged =
        window.taps == 0 && (!bits.defined() || bits.numel() == 0) && better_transposed(usual);
    if (image_rows > 0 && !can_write_images(usual)) image_rows = 0;
    out = output_for(a, call.spec->rows(), image_rows);
    if (exchanged) operand = column_args(a, plan.a_grouping, knobs, plan);
    if (call.spec->smooth) set_smoothing(operand, call.b.smooth_scales, Smoothing::divide);
    Workspace workspace;
    const RangeKeys keys(workspace, &operand, 1);
    const OperandParts parts(workspace, operand);
    const bool tensor = knobs.granularity == Granularity::per_tensor;
    auto* to = out.mutable_data_ptr<float>();
    if (exchanged) {
      StagedB b(workspace, call.b, knobs, plan, tables);
      workspace.allocate(a);
      parts.point(workspace, tensor, operand);
      keys.quantize(workspace, &operand, 1);
      run_gemm(make_exchanged_problem(b.stage(workspace), operand, knobs, plan, tables, to), a, {});
      return;
    }
    operand.cleared_bytes = operand.source.batches * call.spec->rows();
    const size_t flags = workspace.reserve(operand.cleared_bytes);
    workspace.allocate(a);
    parts.point(workspace, tensor, operand);
    operand.cleared = workspace.at<uint8_t>(flags);
    keys.quantize(workspace, &operand, 1);
    GemmProblem problem = make_problem(operand, OperandB(call.b), knobs, plan, tables, to);
    problem.damaged = operand.cleared;
    problem.b_ready = true;
    if (image_rows > 0) write_images(problem, image_rows);
    run_gemm(problem, a, bits);
  });
  return out;
}

}  // namespace scmp::cuda
