// sc_conv2d on the CPU: depthwise by tables, else lowered to sc_matmul.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "cache/stream_cache.h"
#include "conv/cpu/depthwise.h"
#include "conv/lowering.h"
#include "conv/products.h"
#include "ops/cpu/tensor_source.h"

namespace scmp {
namespace {

constexpr const char* kOp = "sc_conv2d";

// (images, channels, Hout, Wout) in x's memory format, from weights' codes and scales.
at::Tensor run_depthwise(const at::Tensor& x, const Geometry& g, const int16_t* weights,
                         const float* scales, const MatmulKnobs& knobs) {
  const MatmulPlan plan = plan_sc_matmul(knobs, g.taps());
  const auto streams = cached_streams(plan.streams);
  const at::Tensor input = x.to(at::kFloat).contiguous();
  DepthwiseProblem p;
  p.x = input.const_data_ptr<float>();
  p.images = x.size(0);
  p.channels = x.size(1);
  p.height = x.size(2);
  p.width = x.size(3);
  p.kernel_y = g.kernel[0];
  p.kernel_x = g.kernel[1];
  p.stride_y = g.stride[0];
  p.stride_x = g.stride[1];
  p.dilation_y = g.dilation[0];
  p.dilation_x = g.dilation[1];
  p.pad_y = g.before[0];
  p.pad_x = g.before[1];
  p.out_height = out_size(kOp, x, g, 0).expect_int();
  p.out_width = out_size(kOp, x, g, 1).expect_int();
  p.scheme = plan.scheme;
  p.streams = streams.get();
  p.weights = weights;
  p.scales = scales;
  p.c = make_dequantizer(knobs, plan, g.taps()).c;
  const at::Tensor out =
      at::empty({p.images, p.channels, p.out_height, p.out_width}, x.options().dtype(at::kFloat));
  p.out = out.mutable_data_ptr<float>();
  depthwise_conv2d(p, parallel_for);
  return out.contiguous(x.suggest_memory_format());
}

at::Tensor lowered(const at::Tensor& x, const Geometry& g, const at::Tensor& products) {
  return as_images(products, x, out_size(kOp, x, g, 0), out_size(kOp, x, g, 1));
}

// What a table per channel can do: every output position has a scale and a length like the others.
bool by_table(const at::Tensor& x, const Geometry& g, int64_t out, int64_t group_a,
              const LengthArgs& lengths) {
  return depthwise(g, x.size(1), out) && x.numel() > 0 && group_a == 1 && !lengths.by_row() &&
         !lengths.level_lens;
}

at::Tensor conv2d_products_cpu(const at::Tensor& x, const at::Tensor& weight, const Geometry& g,
                               const MatmulArgs& args) {
  if (by_table(x, g, weight.size(0), args.group_a, args.lengths) && args.chunk_d == 0 &&
      args.granularity == "per_row" && args.mode == "bipolar" && !args.smooth_scales) {
    const MatmulKnobs knobs = check_matmul_knobs("sc_matmul", 3, g.taps(), args);
    const MatmulPlan plan = plan_sc_matmul(knobs, g.taps());
    const at::Tensor b = weight.reshape({g.groups, 1, g.taps()});
    const QuantizedOperand quantized =
        quantize_operand(source_of(b), plan.scheme, plan.b_grouping, knobs.levels, parallel_for);
    Buffer<float> scales(g.groups);
    for (int64_t i = 0; i < g.groups; ++i) scales[i] = quantized.affines.at(i, 0).scale;
    return run_depthwise(x, g, quantized.codes.data(), scales.data(), knobs);
  }
  const c10::SymInt positions = out_size(kOp, x, g, 0) * out_size(kOp, x, g, 1);
  return lowered(x, g, lowered_products(kOp, x, weight, g, args, positions));
}

at::Tensor conv2d_products_prepared_cpu(const at::Tensor& x, at::TensorList weight,
                                        const PreparedSpec& spec, const Geometry& g,
                                        const PreparedArgs& args) {
  if (by_table(x, g, spec.batches() * spec.rows(), args.group_a, args.lengths) &&
      spec.mode == "bipolar") {
    const PreparedCall call = check_prepared_b("sc_matmul", weight, args);
    check_codes("sc_matmul", call.b.codes, call.knobs);
    return run_depthwise(x, g, call.b.codes.const_data_ptr<int16_t>(),
                         call.b.scales.const_data_ptr<float>(), call.knobs);
  }
  const c10::SymInt positions = out_size(kOp, x, g, 0) * out_size(kOp, x, g, 1);
  return lowered(x, g, lowered_products(kOp, x, weight, g, args, spec.rows(), positions));
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CPU, m) {
  m.impl("conv2d_products", conv2d_kernel<conv2d_products_cpu>);
  m.impl("conv2d_products.prepared", conv2d_prepared_kernel<conv2d_products_prepared_cpu>);
}

}  // namespace scmp
