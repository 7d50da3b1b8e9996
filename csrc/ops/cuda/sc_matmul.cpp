// sc_matmul on CUDA: quantize both operands in one launch, then slabs of expand and gemm.
#include "ops/sc_matmul.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "gemm/cuda/mma_b1.h"
#include "gemm/cuda/plain.h"
#include "ops/cuda/device_streams.h"
#include "ops/cuda/kernel_choice.h"
#include "ops/cuda/operand.h"
#include "ops/smooth_scales.h"
#include "ops/value_error.h"

namespace scmp::cuda {
namespace {

constexpr int64_t kSlabBytes = int64_t{145} << 20;

CodeLayout code_layout(int64_t rows, const MatmulPlan& plan, int positions) {
  CodeLayout layout;
  layout.rows = rows;
  layout.rows_padded = (rows + 7) / 8 * 8;
  layout.positions = positions;
  layout.stages_per_chunk = (plan.chunk + positions - 1) / positions;
  layout.stages = layout.stages_per_chunk * plan.chunks;
  return layout;
}

void set_smoothing(QuantizeArgs& args, const at::Tensor& scales, Smoothing smoothing) {
  args.source.smoothing = smoothing;
  args.smooth_dtype = dtype_of(scales);
  args.smooth_scales = scales.const_data_ptr();
  args.smooth_stride = scales.stride(0);
}

// Where one operand's results lie in the workspace.
struct OperandParts {
  size_t codes, scales, zeros, sums, affine, keys;

  OperandParts(Workspace& workspace, const QuantizeArgs& args) {
    const CodeLayout& l = args.layout;
    const int64_t rows = args.source.total_rows();
    keys = workspace.reserve(range_key_words(args) * sizeof(uint32_t));
    codes = workspace.reserve(args.source.batches * l.stages * l.rows_padded * l.positions *
                              sizeof(int16_t));
    scales = workspace.reserve(rows * args.chunks * sizeof(float));
    const int64_t unipolar_rows = args.scheme.unipolar ? rows : 0;
    zeros = workspace.reserve(unipolar_rows * sizeof(float));
    sums = workspace.reserve(unipolar_rows * sizeof(float));
    affine = workspace.reserve(sizeof(Affine));
  }

  void point(const Workspace& workspace, bool tensor, QuantizeArgs& args) const {
    args.codes = workspace.at<int16_t>(codes);
    args.scales = workspace.at<float>(scales);
    args.range_keys = workspace.at<uint32_t>(keys);
    if (args.scheme.unipolar) {
      args.zeros = workspace.at<float>(zeros);
      args.sums = workspace.at<float>(sums);
    }
    if (tensor) args.tensor_affine = workspace.at<Affine>(affine);
  }
};

void clear_keys(const QuantizeArgs& args, cudaStream_t stream) {
  const int64_t words = range_key_words(args);
  if (words > 0) {
    C10_CUDA_CHECK(cudaMemsetAsync(args.range_keys, 0, words * sizeof(uint32_t), stream));
  }
}

Dequantizer dequantizer(const MatmulKnobs& knobs, const MatmulPlan& plan, const GemmProblem& p,
                        const QuantizeArgs& a, const QuantizeArgs& b) {
  Dequantizer q = make_dequantizer(knobs, plan, p.d);
  q.n = p.n;
  q.m = p.m;
  q.a_scale = a.scales;
  q.b_scale = b.scales;
  q.a_zeros = a.zeros;
  q.b_zeros = b.zeros;
  q.a_sum = a.sums;
  q.b_sum = b.sums;
  return q;
}

void run_gemm(const GemmProblem& p, const at::Tensor& like, cudaStream_t stream) {
  if (choose_kernel(p) == Kernel::plain) {
    plain_gemm(p, stream);
  } else {
    const int64_t tiles = mma_b1_tiles(p);
    const int64_t per_slab = std::clamp<int64_t>(kSlabBytes / mma_b1_workspace(p, 1), 1,
                                                 std::min<int64_t>(tiles, 65535));
    const at::Tensor slab =
        at::empty({mma_b1_workspace(p, per_slab)}, like.options().dtype(at::kByte));
    for (int64_t first = 0; first < tiles; first += per_slab) {
      mma_b1_gemm(p, slab.mutable_data_ptr(), first, std::min(per_slab, tiles - first),
                  shared_memory_per_block(), stream);
    }
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

at::Tensor sc_matmul_cuda(const at::Tensor& a, const at::Tensor& b, c10::string_view granularity,
                          c10::string_view mode, int64_t sc_prec, std::optional<int64_t> stoc_len,
                          int64_t chunk_d, int64_t group_a, int64_t group_b,
                          std::optional<int64_t> rng_levels, std::optional<c10::string_view> config,
                          bool halve_bipolar_stoc_len,
                          const std::optional<at::Tensor>& smooth_scales) {
  const c10::cuda::OptionalCUDAGuard guard(at::device_of(a));
  const MatmulKnobs knobs =
      check_sc_matmul("sc_matmul", a, b,
                      {granularity, mode, sc_prec, stoc_len, chunk_d, group_a, group_b, rng_levels,
                       config, halve_bipolar_stoc_len, smooth_scales});
  const bool smooth = smooth_scales && smooth_scales->defined();
  if (smooth && knobs.sync_checks) {
    TORCH_CHECK_VALUE(!capturing(),
                      "sc_matmul: SCMP_SYNC_CHECKS=1 syncs, which a CUDA graph "
                      "capture cannot; unset it");
    check_smooth_values("sc_matmul", *smooth_scales);
  }
  auto shape = a.sizes().vec();
  shape.back() = b.size(-2);
  const auto options = a.options().dtype(at::kFloat);
  const int64_t depth = a.size(-1);
  if (depth == 0) return at::zeros(shape, options);
  at::Tensor out = at::empty(shape, options);
  if (out.numel() == 0) return out;

  const MatmulPlan plan = plan_sc_matmul(knobs, depth);
  const auto streams = device_streams(plan.streams);
  const DeviceTables& tables = streams->tables;
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  QuantizeArgs operands[2] = {operand_args(a, plan.scheme, plan.a_grouping, knobs.levels),
                              operand_args(b, plan.scheme, plan.b_grouping, knobs.levels)};
  Workspace workspace;
  for (QuantizeArgs& q : operands) {
    q.layout = code_layout(q.source.rows, plan, mma_b1_positions(tables.words));
    q.lane_of = tables.lane_of;
    q.lanes = tables.lanes;
  }
  operands[0].cycles = tables.a_cycles;
  operands[1].scales_transposed = true;
  if (smooth) {
    set_smoothing(operands[0], *smooth_scales, Smoothing::divide);
    set_smoothing(operands[1], *smooth_scales, Smoothing::multiply);
  }
  const bool tensor = knobs.granularity == Granularity::per_tensor;
  const OperandParts parts[2] = {{workspace, operands[0]}, {workspace, operands[1]}};
  workspace.allocate(a);
  for (int i = 0; i < 2; ++i) {
    parts[i].point(workspace, tensor, operands[i]);
    clear_keys(operands[i], stream);
  }
  with_value_errors("sc_matmul", [&] {
    if (operands[0].range_from == RangeFrom::keys || operands[1].range_from == RangeFrom::keys) {
      find_ranges(operands, 2, stream);
    }
    quantize(operands, 2, stream);
  });

  GemmProblem problem;
  problem.batches = operands[0].source.batches;
  problem.n = operands[0].source.rows;
  problem.m = operands[1].source.rows;
  problem.d = depth;
  problem.chunk = plan.chunk;
  problem.chunks = plan.chunks;
  problem.unipolar = knobs.unipolar;
  problem.a_layout = operands[0].layout;
  problem.b_layout = operands[1].layout;
  problem.a_cycles = operands[0].codes;
  problem.b_codes = operands[1].codes;
  problem.tables = tables;
  problem.a_tensor = operands[0].tensor_affine;
  problem.b_tensor = operands[1].tensor_affine;
  problem.dequantizer = dequantizer(knobs, plan, problem, operands[0], operands[1]);
  problem.out = out.mutable_data_ptr<float>();
  with_value_errors("sc_matmul", [&] { run_gemm(problem, a, stream); });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CUDA, m) { m.impl("sc_matmul", sc_matmul_cuda); }

}  // namespace scmp::cuda
