// Shorter streams are prefixes of longer ones, so any gemm kernel runs as for the longest: only the
// cycles that a's codes enable, and each row's c, differ. wgmma_b1 sorts the rows, multiplies every
// block of them at the length that it needs, and exchanges the operands where a is the smaller one.
// On a grid where a full sequence is another one than the shorter, and both may occur, every
// position comes twice.
#include "ops/cuda/row_lengths.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gemm/cuda/mma_b1.h"
#include "gemm/cuda/row_lengths.h"
#include "gemm/cuda/stage_classes.h"
#include "ops/cuda/device_streams.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/kernel_choice.h"
#include "ops/cuda/matmul_problem.h"
#include "ops/value_error.h"

namespace scmp::cuda {
namespace {

constexpr int64_t kMostClassBytes = int64_t{1} << 30;  // of b's copies, one for every class

// int32 of the call's lengths on the device; values out of range stay out of it.
at::Tensor device_lengths(const LengthArgs& lengths, int64_t longest) {
  at::Tensor given = lengths.row_stoc_len ? *lengths.row_stoc_len : *lengths.rung_table;
  if (given.scalar_type() != at::kInt && given.scalar_type() != at::kLong) {
    given = given.to(at::kLong);
  }
  given = given.contiguous();
  const at::Tensor out = at::empty_like(given, given.options().dtype(at::kInt));
  NormalLengthsArgs args;
  args.count = given.numel();
  args.given = given.const_data_ptr();
  args.wide = given.scalar_type() == at::kLong;
  args.longest = static_cast<int>(longest);
  args.out = out.mutable_data_ptr<int32_t>();
  std::vector<int> levels;
  if (!lengths.row_stoc_len) levels.assign(lengths.level_lens->begin(), lengths.level_lens->end());
  normal_lengths(args, lengths.row_stoc_len ? nullptr : &levels, at::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
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

// Lengths by row as kernels see them, and where in the workspace the sorted rows lie.
struct SortedParts {
  size_t order, words, needs, row_c;

  SortedParts(Workspace& workspace, const RowLengthArgs& args) {
    const int64_t blocks = (args.rows + kTileColumns - 1) / kTileColumns;  // the most there are
    order = workspace.reserve(args.batches * args.rows * sizeof(int32_t));
    words = workspace.reserve(args.batches * blocks * args.chunks * sizeof(int32_t));
    needs = workspace.reserve(args.batches * sizeof(uint32_t));
    row_c = workspace.reserve(args.batches * args.rows * args.chunks * sizeof(float));
  }
  void point(const Workspace& workspace, bool sorted, RowLengthArgs& args) const {
    args.row_c = workspace.at<float>(row_c);
    if (!sorted) return;
    args.row_order = workspace.at<int32_t>(order);
    args.row_words = workspace.at<int32_t>(words);
    args.row_needs = workspace.at<uint32_t>(needs);
  }
};

SortedRows sorted_rows(const RowLengthArgs& args, const LengthTables& tables = {}) {
  SortedRows sorted;
  sorted.order = args.row_order;
  sorted.words = args.row_words;
  sorted.needs = args.row_needs;
  sorted.lengths = args.lengths;
  sorted.length_per_chunk = args.length_per_chunk;
  sorted.longest = args.longest;
  sorted.tables = tables;
  sorted.tables.cycles = args.tables.bits;
  sorted.tables.cycle_words = args.tables.words;
  return sorted;
}

SortedPlaces sorted_places(int64_t rows, const MatmulPlan& plan) {
  return {(rows + 7) / 8 * 8, plan.chunks, (plan.chunk + kUnitPositions - 1) / kUnitPositions};
}

// The classes' copies of b, which a transposed problem multiplies.
struct ClassesOfB {
  StageClassesArgs args;
  size_t staged, scales;

  ClassesOfB(Workspace& workspace, const Prepared& b, const MatmulKnobs& knobs,
             const MatmulPlan& plan, const DeviceTables& streams, const LengthTables& tables) {
    static_cast<QuantizedB&>(args) = quantized_b(b, knobs, plan, streams);
    args.tables = tables;
    args.places = sorted_places(args.rows, plan);
    args.class_stride = args.places.size(args.batches);
    const int classes = class_of_words(streams.words) + 1;
    staged = workspace.reserve(classes * args.class_stride * sizeof(int16_t));
    scales = workspace.reserve(args.batches * args.rows * args.chunks * sizeof(float));
  }
  /// Launches the kernel; what quantizing b as the operand whose cycles count would have given.
  QuantizeArgs stage(const Workspace& workspace, const uint32_t* needs, cudaStream_t stream) {
    args.needs = needs;
    args.staged = workspace.at<int16_t>(staged);
    args.row_scales = workspace.at<float>(scales);
    stage_classes(args, current_device_limits().multiprocessors, stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    StageLayout layout;
    layout.rows_padded = args.places.rows_padded;
    return as_cycles(args, layout);
  }
};

}  // namespace

void sync_check_lengths(const at::Tensor& a, const LengthArgs& lengths, const MatmulKnobs& knobs) {
  if (!knobs.sync_checks) return;
  refuse_capture("sc_matmul");
  const int64_t rows = a.dim() == 3 ? a.size(0) * a.size(1) : a.size(0);
  host_row_lengths("sc_matmul", lengths, rows, chunk_count(a.size(-1), knobs.chunk_d),
                   knobs.longest);
}

namespace {

RowLengthArgs row_length_args(const QuantizeArgs& operand, const at::Tensor& lengths,
                              const MatmulKnobs& knobs, const MatmulPlan& plan, bool both,
                              const CycleTables& tables) {
  RowLengthArgs args;
  args.batches = operand.source.batches;
  args.rows = operand.source.rows;
  args.columns = operand.source.dim;
  args.chunk = plan.chunk;
  args.chunks = plan.chunks;
  args.lengths = lengths.const_data_ptr<int32_t>();
  args.length_per_chunk = lengths.numel() == args.batches * args.rows * args.chunks;
  args.longest = knobs.longest;
  args.full = both ? 1 << knobs.sc_prec : 0;
  args.tables = tables;
  return args;
}

// How a problem, which has no pointers yet, runs: whether rows are sorted, and with the operands
// exchanged, whose tables are then there.
struct ByRowPlan {
  bool sorted = false;
  std::shared_ptr<const DeviceClasses> exchanged;

  ByRowPlan(GemmProblem problem, const MatmulPlan& plan, const RowLengthArgs& args) {
    const int32_t some_order = 0;
    problem.sorted.order = &some_order;
    sorted = choose_kernel(problem, current_device_limits()) == Kernel::wgmma_b1;
    const int64_t copies = class_of_words(problem.tables.words) + 1;
    const int64_t bytes = copies * sorted_places(problem.m, plan).size(problem.batches) * 2;
    if (!sorted || args.full || !args.tables.bits || bytes > kMostClassBytes ||
        !better_transposed(problem)) {
      return;
    }
    auto tables = device_classes(plan.streams);
    if (tables->tables.ranked[0]) exchanged = std::move(tables);
  }
};

}  // namespace

at::Tensor multiply_by_row(const at::Tensor& a, const Prepared& b, const QuantizeArgs* b_work,
                           const LengthArgs& lengths, const MatmulKnobs& knobs,
                           const Window& window) {
  const MatmulPlan plan = plan_sc_matmul(knobs, a.size(-1));
  const bool both = needed_streams(lengths, knobs, plan.streams) == Streams::both;
  const MatmulPlan gemm_plan = both ? twice(plan) : plan;
  const auto streams = device_streams(gemm_plan.streams);
  const auto ranks = device_ranks(gemm_plan.streams);
  const at::Tensor by_row = device_lengths(lengths, knobs.longest);
  at::Tensor out = make_output(a, b.codes.size(-2), /*zeroed=*/false);
  with_value_errors("sc_matmul", [&] {
    const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    auto* to = out.mutable_data_ptr<float>();
    // a's codes and scales, in its own order, and b's where they are not there yet.
    QuantizeArgs operands[2] = {code_args(a, plan.a_grouping, knobs, plan)};
    QuantizeArgs& operand = operands[0];
    const int count = b_work ? 2 : 1;
    if (b_work) operands[1] = *b_work;
    RowLengthArgs args = row_length_args(operand, by_row, knobs, plan, both, ranks->tables);
    args.layout = stage_layout(args.rows, gemm_plan, mma_b1_positions(streams->tables.words));
    // The problem with a's rows, whose cycles come staged.
    QuantizeArgs staged_a = operand;
    staged_a.layout = args.layout;
    staged_a.source.dim = both ? 2 * args.columns : args.columns;
    GemmProblem problem =
        make_problem(staged_a, OperandB(b), knobs, gemm_plan, streams->tables, to);
    args.qmax_squared = problem.dequantizer.qmax_squared;
    const ByRowPlan how(problem, gemm_plan, args);
    const bool sorted = how.sorted;
    if (how.exchanged) {
      operand = column_args(a, plan.a_grouping, knobs, plan);
      args.block_rows = kTileColumns;
    }
    operand.window = window;
    if (b.smooth_scales.numel() > 0) set_smoothing(operand, b.smooth_scales, Smoothing::divide);

    Workspace workspace;
    const SortedParts sorted_parts(workspace, args);
    const RangeKeys keys(workspace, operands, count);
    const OperandParts parts(workspace, operand);
    std::optional<ClassesOfB> classes;
    size_t cycles = 0;
    if (how.exchanged) {
      classes.emplace(workspace, b, knobs, plan, streams->tables, how.exchanged->tables);
    } else {
      const StageLayout& l = args.layout;
      const int64_t staged = sorted ? sorted_places(args.rows, gemm_plan).size(args.batches)
                                    : args.batches * l.stages * l.rows_padded * l.positions;
      cycles = workspace.reserve(staged * sizeof(int16_t));
    }
    workspace.allocate(a);
    parts.point(workspace, /*tensor=*/false, operand);
    sorted_parts.point(workspace, sorted, args);
    keys.quantize(workspace, operands, count);
    if (sorted) sort_rows(args, stream);
    if (how.exchanged) {
      const QuantizeArgs staged_b = classes->stage(workspace, args.row_needs, stream);
      problem = make_problem(staged_b, OperandB(operand), knobs, plan, streams->tables, to);
      problem.transposed = true;
      problem.sorted = sorted_rows(args, how.exchanged->tables);
      problem.sorted.class_stride = classes->args.class_stride;
      problem.sorted.staging_in_front = true;
      problem.dequantizer.row_c = args.row_c;
      return run_gemm(problem, a, {});
    }
    const at::Tensor b_codes = both ? at::repeat_interleave(b.codes, 2, -1) : b.codes;
    const at::Tensor damaged =
        at::zeros({args.batches * b.codes.size(-2)}, a.options().dtype(at::kByte));
    args.codes = operand.codes;
    args.cycles = workspace.at<int16_t>(cycles);
    stage_row_lengths(args, stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    problem.a_cycles = args.cycles;
    problem.b_codes = b_codes.const_data_ptr<int16_t>();
    problem.dequantizer.a_scale = operand.scales;
    problem.dequantizer.row_c = args.row_c;
    problem.damaged = damaged.mutable_data_ptr<uint8_t>();
    if (sorted) problem.sorted = sorted_rows(args);
    run_gemm(problem, a, {});
  });
  return out;
}

}  // namespace scmp::cuda
