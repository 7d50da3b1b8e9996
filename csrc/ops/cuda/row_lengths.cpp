// Shorter streams are prefixes of longer ones, so the gemm kernels run as for the longest: only the
// cycles that a's codes enable, and each row's c, differ. On a grid where a full sequence is
// another one than the shorter, and both may occur, every position comes twice.
#include "ops/cuda/row_lengths.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "gemm/cuda/mma_b1.h"
#include "gemm/cuda/row_lengths.h"
#include "ops/cuda/device_streams.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/kernel_choice.h"
#include "ops/cuda/matmul_problem.h"
#include "ops/value_error.h"

namespace scmp::cuda {
namespace {

// int32 of the call's lengths on the device; values out of range stay out of it. Fills take their
// values from the host: a table of levels would have to be copied over, which a graph capture
// cannot.
at::Tensor device_lengths(const LengthArgs& lengths, int64_t longest) {
  if (lengths.row_stoc_len) {
    const at::Tensor& given = *lengths.row_stoc_len;
    const bool wide = given.scalar_type() == at::kLong || given.scalar_type() == at::kUInt32;
    // Out of range stays out of range; narrow types fit as they are.
    return (wide ? given.to(at::kLong).clamp(-1, longest + 1) : given).to(at::kInt).contiguous();
  }
  const at::Tensor rungs = lengths.rung_table->to(at::kLong);
  at::Tensor out =
      at::full_like(rungs, -1, at::TensorOptions().dtype(at::kInt), at::MemoryFormat::Contiguous);
  for (size_t i = 0; i < lengths.level_lens->size(); ++i) {
    out.masked_fill_(rungs.eq(static_cast<int64_t>(i)), (*lengths.level_lens)[i]);
  }
  return out;
}

// Which streams a call may need, as far as the host knows.
enum class Streams { shorter, full, both };

Streams needed_streams(const LengthArgs& lengths, const MatmulKnobs& knobs,
                       const StreamSpec& streams) {
  const int full = 1 << knobs.sc_prec;
  if (lengths_share_sequences(streams) || knobs.length < full) return Streams::shorter;
  if (!lengths.level_lens) return Streams::both;
  const auto& levels = *lengths.level_lens;
  const bool shorter =
      std::any_of(levels.begin(), levels.end(), [&](int64_t l) { return l > 0 && l < full; });
  return shorter ? Streams::both : Streams::full;
}

MatmulPlan twice(MatmulPlan plan) {
  plan.chunk *= 2;
  plan.streams.full_and_shorter = true;
  return plan;
}

}  // namespace

void sync_check_lengths(const at::Tensor& a, const LengthArgs& lengths, const MatmulKnobs& knobs) {
  if (!knobs.sync_checks) return;
  refuse_capture("sc_matmul");
  const int64_t rows = a.dim() == 3 ? a.size(0) * a.size(1) : a.size(0);
  host_row_lengths("sc_matmul", lengths, rows, chunk_count(a.size(-1), knobs.chunk_d),
                   knobs.longest);
}

at::Tensor multiply_by_row(const at::Tensor& a, const Prepared& b, const LengthArgs& lengths,
                           const MatmulKnobs& knobs, const Window& window) {
  const MatmulPlan plan = plan_sc_matmul(knobs, a.size(-1));
  const bool both = needed_streams(lengths, knobs, plan.streams) == Streams::both;
  const MatmulPlan gemm_plan = both ? twice(plan) : plan;
  const auto streams = device_streams(gemm_plan.streams);
  const auto ranks = device_ranks(gemm_plan.streams);

  // a's codes and scales, in its own order.
  QuantizeArgs operand = code_args(a, plan.a_grouping, knobs, plan);
  operand.window = window;
  if (b.smooth_scales.numel() > 0) set_smoothing(operand, b.smooth_scales, Smoothing::divide);
  Workspace workspace;
  const RangeKeys keys(workspace, &operand, 1);
  const OperandParts parts(workspace, operand);
  RowLengthArgs args;
  args.batches = operand.source.batches;
  args.rows = operand.source.rows;
  args.columns = operand.source.dim;
  args.chunk = plan.chunk;
  args.chunks = plan.chunks;
  args.layout = stage_layout(args.rows, gemm_plan, mma_b1_positions(streams->tables.words));
  const int64_t staged =
      args.batches * args.layout.stages * args.layout.rows_padded * args.layout.positions;
  const size_t cycles = workspace.reserve(staged * sizeof(int16_t));
  const size_t row_c = workspace.reserve(args.batches * args.rows * args.chunks * sizeof(float));
  const int64_t blocks = (args.rows + kWgmmaRows - 1) / kWgmmaRows;
  const size_t order = workspace.reserve(args.batches * args.rows * sizeof(int32_t));
  const size_t words = workspace.reserve(args.batches * blocks * args.chunks * sizeof(int32_t));
  const size_t needs = workspace.reserve(args.batches * sizeof(uint32_t));
  workspace.allocate(a);
  parts.point(workspace, /*tensor=*/false, operand);

  const at::Tensor by_row = device_lengths(lengths, knobs.longest);
  args.codes = operand.codes;
  args.lengths = by_row.const_data_ptr<int32_t>();
  args.length_per_chunk = by_row.numel() == args.batches * args.rows * args.chunks;
  args.longest = knobs.longest;
  args.full = both ? 1 << knobs.sc_prec : 0;
  args.tables = ranks->tables;
  args.cycles = workspace.at<int16_t>(cycles);
  args.row_c = workspace.at<float>(row_c);

  at::Tensor b_codes = b.codes;
  if (both) b_codes = at::repeat_interleave(b_codes, 2, -1);
  const at::Tensor damaged =
      at::zeros({args.batches * b.codes.size(-2)}, a.options().dtype(at::kByte));
  at::Tensor out = make_output(a, b.codes.size(-2), /*zeroed=*/false);
  with_value_errors("sc_matmul", [&] {
    const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    keys.quantize(workspace, &operand, 1);
    OperandB operand_b(b);
    operand_b.codes = b_codes.const_data_ptr<int16_t>();
    QuantizeArgs staged_a = operand;
    staged_a.layout = args.layout;
    staged_a.codes = args.cycles;
    staged_a.source.dim = both ? 2 * args.columns : args.columns;
    GemmProblem problem = make_problem(staged_a, operand_b, knobs, gemm_plan, streams->tables,
                                       out.mutable_data_ptr<float>());
    problem.dequantizer.row_c = args.row_c;
    problem.damaged = damaged.mutable_data_ptr<uint8_t>();
    args.qmax_squared = problem.dequantizer.qmax_squared;
    if (choose_kernel(problem, current_device_limits()) == Kernel::wgmma_b1) {
      problem.row_order = args.row_order = workspace.at<int32_t>(order);
      problem.row_words = args.row_words = workspace.at<int32_t>(words);
      problem.row_needs = args.row_needs = workspace.at<uint32_t>(needs);
      sort_rows(args, stream);
    }
    stage_row_lengths(args, stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    run_gemm(problem, a, {});
  });
  return out;
}

}  // namespace scmp::cuda
