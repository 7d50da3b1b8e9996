// sc_matmul and the preparation of its b on CUDA.
#include "ops/sc_matmul.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "gemm/cuda/mma_b1.h"
#include "ops/cuda/device_streams.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/multiply.h"

namespace scmp::cuda {
namespace {

at::Tensor sc_matmul_cuda(const at::Tensor& a, const at::Tensor& b, const MatmulArgs& args) {
  // Before the device guard: a may be on another kind of device.
  const MatmulKnobs knobs = check_sc_matmul("sc_matmul", a, b, args);
  return multiply(a, b, args, knobs);
}

at::Tensor sc_matmul_prepared_cuda(const at::Tensor& a, at::TensorList b,
                                   const PreparedArgs& args) {
  PreparedCall call = check_prepared(a, b, args);
  return multiply_prepared(a, call, args);
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

std::vector<at::Tensor> prepare_cuda(const at::Tensor& b, const MatmulArgs& args, bool with_bits) {
  const std::optional<at::Tensor>& scales = args.smooth_scales;
  const MatmulKnobs knobs = check_prepare("prepare", b, args);
  const c10::cuda::CUDAGuard guard(b.device());
  if (scales) sync_check("prepare", knobs, *scales);
  if (b.numel() == 0) {  // never multiplied
    Prepared out = empty_prepared(b, knobs, scales.has_value());
    if (scales) out.smooth_scales.copy_(*scales);
    for (const at::Tensor& part : {out.scales, out.zero_points, out.level_sums, out.tensor_map}) {
      part.zero_();
    }
    return out.list();
  }
  Prepared out = quantize_b("prepare", b, knobs, scales);
  if (with_bits) out.expanded = expand(out, knobs);
  return out.list();
}

at::Tensor expand_prepared_cuda(at::TensorList b, c10::string_view spec) {
  PreparedCall call = check_prepared_b("sc_matmul", b, {spec, 1, {}});
  const c10::cuda::CUDAGuard guard(call.b.codes.device());
  call.b.codes = aligned(call.b.codes);
  return call.b.codes.numel() == 0 ? at::empty({0}, call.b.codes.options().dtype(at::kByte))
                                   : expand(call.b, call.knobs);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CUDA, m) {
  m.impl("sc_matmul", sc_matmul_kernel<sc_matmul_cuda>);
  m.impl("sc_matmul.prepared", prepared_kernel<sc_matmul_prepared_cuda>);
  m.impl("prepare", prepare_kernel<prepare_cuda>);
  m.impl("expand_prepared", expand_prepared_cuda);
}

}  // namespace scmp::cuda
