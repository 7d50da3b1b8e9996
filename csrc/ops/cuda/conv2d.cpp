// sc_conv2d on CUDA: codes are gathered from the input while quantizing.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "conv/cuda/depthwise.h"
#include "conv/cuda/transpose.h"
#include "conv/lowering.h"
#include "conv/products.h"
#include "ops/cuda/device_streams.h"
#include "ops/cuda/multiply.h"
#include "ops/value_error.h"

namespace scmp::cuda {
namespace {

constexpr const char* kOp = "sc_conv2d";
constexpr int64_t kMostSize = int64_t{1} << 30;  // of what a window counts in 32 bits
constexpr int64_t kMostTurned = int64_t{60} << 20, kLeastTurned = 8;  // bytes; channels

// The sizes of one call.
struct Sizes {
  int64_t images, height, width, out_group, columns;
  int64_t positions() const { return height * width; }

  Sizes(const at::Tensor& x, const Geometry& g, int64_t out)
      : images(x.size(0)),
        height(out_size(kOp, x, g, 0).expect_int()),
        width(out_size(kOp, x, g, 1).expect_int()),
        out_group(out / g.groups),
        columns(x.size(1) / g.groups * g.taps()) {}
};

// Whether a window can describe it, and there is anything to do.
bool windows_fit(const at::Tensor& x, const Geometry& g, const Sizes& sizes) {
  if (x.numel() == 0 || sizes.out_group == 0 || sizes.images * sizes.positions() == 0) return false;
  for (int i = 0; i < 2; ++i) {
    if (g.kernel[i] > kMostSize || g.stride[i] > kMostSize || g.dilation[i] > kMostSize ||
        x.size(2 + i) + g.before[i] + g.after[i] > kMostSize) {
      return false;
    }
  }
  return sizes.images * sizes.positions() < kMostSize && sizes.columns < kMostSize;
}

Window window_of(const at::Tensor& x, const Geometry& g, const Sizes& sizes) {
  Window w;
  w.taps = static_cast<int>(g.taps());
  w.kernel_x = static_cast<int>(g.kernel[1]);
  w.stride_y = static_cast<int>(g.stride[0]);
  w.stride_x = static_cast<int>(g.stride[1]);
  w.dilation_y = static_cast<int>(g.dilation[0]);
  w.dilation_x = static_cast<int>(g.dilation[1]);
  w.pad_y = static_cast<int>(g.before[0]);
  w.pad_x = static_cast<int>(g.before[1]);
  w.height = static_cast<int>(x.size(2));
  w.width = static_cast<int>(x.size(3));
  w.positions = static_cast<int>(sizes.positions());
  w.positions_x = static_cast<int>(sizes.width);
  w.image_stride = x.stride(0);
  w.channel_stride = x.stride(1);
  w.group_stride = x.size(1) / g.groups * x.stride(1);
  w.y_stride = x.stride(2);
  w.x_stride = x.stride(3);
  return w;
}

// The lowered input's shape over x's memory: nothing reads it by these strides.
at::Tensor rows_of(const at::Tensor& x, const Geometry& g, const Sizes& sizes) {
  const int64_t rows = sizes.images * sizes.positions();
  if (g.groups == 1) return x.as_strided({rows, sizes.columns}, {0, 0});
  return x.as_strided({g.groups, rows, sizes.columns}, {0, 0, 0});
}

at::Tensor weight_rows(const at::Tensor& weight, const Geometry& g, const Sizes& sizes) {
  if (g.groups == 1) return weight.reshape({weight.size(0), sizes.columns});
  return weight.reshape({g.groups, sizes.out_group, sizes.columns});
}

bool channels_first(const at::Tensor& x) {
  return x.suggest_memory_format() == at::MemoryFormat::Contiguous;
}

// Positions of an image where products may come as images: see multiply().
int64_t image_rows(const at::Tensor& x, const Geometry& g, const Sizes& sizes) {
  return g.groups == 1 && channels_first(x) ? sizes.positions() : 0;
}

// (rows, Cout), with groups (groups, rows, Cout / groups), or (images, Cout, positions), as images.
at::Tensor to_images(at::Tensor y, const at::Tensor& x, const Geometry& g, const Sizes& sizes) {
  const int64_t out = g.groups * sizes.out_group;
  if (g.groups == 1 && y.dim() == 3) {
    return y.view({sizes.images, out, sizes.height, sizes.width});
  }
  if (g.groups == 1 && channels_first(x)) {
    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor images =
        at::empty({sizes.images, out, sizes.height, sizes.width}, y.options());
    with_value_errors(kOp, [&] {
      transpose(y.const_data_ptr<float>(), images.mutable_data_ptr<float>(), sizes.images,
                sizes.positions(), out, at::cuda::getCurrentCUDAStream());
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return images;
  }
  if (g.groups > 1) y = y.transpose(0, 1);
  return as_images(y.reshape({sizes.images, sizes.positions(), out}), x, sizes.height, sizes.width);
}

// Whether the depthwise kernel, whose neighbours are positions, is faster on copies with channels
// first: dense float32 in channels_last, the copies of input and output within kMostTurned.
bool better_turned(const at::Tensor& x, const Sizes& sizes) {
  const int64_t elements = x.numel() + sizes.images * x.size(1) * sizes.positions();
  return x.scalar_type() == at::kFloat && !channels_first(x) && x.size(1) >= kLeastTurned &&
         x.is_contiguous(x.suggest_memory_format()) &&
         elements * static_cast<int64_t>(sizeof(float)) <= kMostTurned;
}

// x's values (float32, images, channels and positions of any sizes) in the other format.
at::Tensor turned(const at::Tensor& x, at::MemoryFormat format) {
  at::Tensor out = at::empty(x.sizes(), x.options(), format);
  const int64_t channels = x.size(1), positions = x.size(2) * x.size(3);
  const bool last = format == at::MemoryFormat::ChannelsLast;
  transpose(x.const_data_ptr<float>(), out.mutable_data_ptr<float>(), x.size(0),
            last ? channels : positions, last ? positions : channels,
            at::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}

// The depthwise kernel's output; undefined where that kernel cannot do it. Weights are prepared, or
// quantized by it.
at::Tensor run_depthwise(const at::Tensor& given, const Geometry& g, const at::Tensor& weight,
                         const Prepared* prepared, const MatmulKnobs& knobs, const Sizes& sizes) {
  const MatmulPlan plan = plan_sc_matmul(knobs, sizes.columns);
  const auto streams = device_streams(plan.streams);
  at::Tensor x = given;
  DepthwiseArgs args;
  const auto set_input = [&] {
    args.a = a_args(rows_of(x, g, sizes), knobs, plan, streams->tables, window_of(x, g, sizes));
  };
  set_input();
  if (!prepared) args.b = column_args(weight, plan.b_grouping, knobs, plan);
  const OperandB b = prepared ? OperandB(*prepared) : OperandB(args.b);
  args.gemm = make_problem(args.a, b, knobs, plan, streams->tables, nullptr);
  args.images = sizes.images;
  if (!depthwise_fits(args)) return {};
  const bool turns = better_turned(x, sizes);
  if (turns) {
    x = turned(x, at::MemoryFormat::Contiguous);
    set_input();
    args.gemm = make_problem(args.a, b, knobs, plan, streams->tables, nullptr);
  }
  const at::Tensor out = at::empty({sizes.images, x.size(1), sizes.height, sizes.width},
                                   x.options().dtype(at::kFloat), x.suggest_memory_format());
  args.out = out.mutable_data_ptr<float>();
  args.image_stride = out.stride(0);
  args.channel_stride = out.stride(1);
  args.position_stride = out.stride(3);  // rows of positions follow each other in both formats
  depthwise_conv2d(args, at::cuda::getCurrentCUDAStream());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return turns ? turned(out, at::MemoryFormat::ChannelsLast) : out;
}

// With groups: products that one batched product gives. Lengths of another form than one by row
// are left to the lowering, which says what does not fit.
bool batched(const at::Tensor& x, const Geometry& g, const Sizes& sizes, int64_t group_a,
             const LengthArgs& lengths) {
  if (g.groups == 1) return true;
  if (lengths.by_row() && !(lengths.row_stoc_len && lengths.row_stoc_len->dim() == 1 &&
                            lengths.row_stoc_len->size(0) == sizes.images * sizes.positions())) {
    return false;
  }
  return group_a == 1 || !depthwise(g, x.size(1), g.groups * sizes.out_group);
}

// Arguments whose lengths by row are those of a batch entry per group: the same for all.
template <typename Args>
Args with_group_lengths(Args args, const Geometry& g) {
  std::optional<at::Tensor>& lengths = args.lengths.row_stoc_len;
  if (g.groups > 1 && lengths) lengths = lengths->expand({g.groups, lengths->size(0)});
  return args;
}

at::Tensor conv2d_products_cuda(const at::Tensor& x, const at::Tensor& weight, const Geometry& g,
                                const MatmulArgs& given) {
  const Sizes sizes(x, g, weight.size(0));
  check_lowered_scales(kOp, given.smooth_scales, x.size(1), g);
  const bool plain = given.granularity == "per_row" && given.chunk_d == 0 && !given.smooth_scales;
  if (!windows_fit(x, g, sizes) || (g.groups > 1 && !plain) ||
      !batched(x, g, sizes, given.group_a, given.lengths)) {
    return as_images(lowered_products(kOp, x, weight, g, given, sizes.positions()), x, sizes.height,
                     sizes.width);
  }
  const MatmulArgs args = with_group_lengths(given, g);
  const Window window = window_of(x, g, sizes);
  const at::Tensor a = rows_of(x, g, sizes), b = weight_rows(weight, g, sizes);
  const MatmulKnobs knobs = check_sc_matmul("sc_matmul", a, b, args);
  if (depthwise(g, x.size(1), weight.size(0)) && !knobs.unipolar && !knobs.by_row) {
    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor out = run_depthwise(x, g, b, nullptr, knobs, sizes);
    if (out.defined()) return out;
  }
  return to_images(multiply(a, b, args, knobs, window, image_rows(x, g, sizes)), x, g, sizes);
}

at::Tensor conv2d_products_prepared_cuda(const at::Tensor& x, at::TensorList weight,
                                         const PreparedSpec& spec, const Geometry& g,
                                         const PreparedArgs& given) {
  const Sizes sizes(x, g, spec.batches() * spec.rows());
  if (!windows_fit(x, g, sizes) || !batched(x, g, sizes, given.group_a, given.lengths)) {
    const at::Tensor y =
        lowered_products(kOp, x, weight, g, given, sizes.out_group, sizes.positions());
    return as_images(y, x, sizes.height, sizes.width);
  }
  const PreparedArgs args = with_group_lengths(given, g);
  const Window window = window_of(x, g, sizes);
  const at::Tensor a = rows_of(x, g, sizes);
  PreparedCall call = check_prepared(a, weight, args);
  if (depthwise(g, x.size(1), g.groups * sizes.out_group) && !call.knobs.unipolar &&
      !call.knobs.by_row && !call.knobs.sync_checks) {
    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor out = run_depthwise(x, g, {}, &call.b, call.knobs, sizes);
    if (out.defined()) return out;
  }
  return to_images(multiply_prepared(a, call, args, window, image_rows(x, g, sizes)), x, g, sizes);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CUDA, m) {
  m.impl("conv2d_products", conv2d_kernel<conv2d_products_cuda>);
  m.impl("conv2d_products.prepared", conv2d_prepared_kernel<conv2d_products_prepared_cuda>);
}

}  // namespace scmp::cuda
