#include "ops/cuda/multiply.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#include "ops/cuda/device_streams.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/row_lengths.h"
#include "ops/value_error.h"

namespace scmp::cuda {
namespace {

// The kernels read pairs and more at once: a view into the middle of another tensor is copied.
at::Tensor aligned(const at::Tensor& x) {
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 ? x : x.clone();
}

}  // namespace

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const MatmulArgs& args,
                    const MatmulKnobs& knobs, const Window& window) {
  const c10::cuda::CUDAGuard guard(a.device());
  const std::optional<at::Tensor>& smooth_scales = args.smooth_scales;
  if (smooth_scales) sync_check("sc_matmul", knobs, *smooth_scales);
  if (knobs.by_row) {
    sync_check_lengths(a, args.lengths, knobs);
    if (a.numel() == 0 || b.numel() == 0) return make_output(a, b.size(-2), /*zeroed=*/true);
    const Prepared quantized = quantize_b("sc_matmul", b, knobs, smooth_scales);
    return multiply_by_row(a, quantized, args.lengths, knobs, window);
  }
  at::Tensor out = make_output(a, b.size(-2), /*zeroed=*/false);
  if (out.numel() == 0 || a.size(-1) == 0) return out;

  const MatmulPlan plan = plan_sc_matmul(knobs, a.size(-1));
  const auto streams = device_streams(plan.streams);
  QuantizeArgs operands[2] = {a_args(a, knobs, plan, streams->tables, window),
                              b_args(b, knobs, plan)};
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
  with_value_errors("sc_matmul", [&] {
    keys.quantize(workspace, operands, 2);
    run_gemm(make_problem(operands[0], OperandB(operands[1]), knobs, plan, streams->tables,
                          out.mutable_data_ptr<float>()),
             a, {});
  });
  return out;
}

at::Tensor multiply_prepared(const at::Tensor& a, PreparedCall& call, const PreparedArgs& args,
                             const Window& window) {
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
    return multiply_by_row(a, call.b, args.lengths, knobs, window);
  }
  at::Tensor out = make_output(a, call.spec->rows(), /*zeroed=*/false);
  if (out.numel() == 0 || a.size(-1) == 0) return out;

  const MatmulPlan plan = plan_sc_matmul(knobs, a.size(-1));
  const auto streams = device_streams(plan.streams);
  QuantizeArgs operand = a_args(a, knobs, plan, streams->tables, window);
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
    run_gemm(problem, a, args.lengths.stoc_len ? at::Tensor() : call.b.expanded);
  });
  return out;
}

}  // namespace scmp::cuda
