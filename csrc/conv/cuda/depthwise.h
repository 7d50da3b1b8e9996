// Depthwise convolution in one kernel: every channel has few weights, so the ones that a code of a
// yields with each of them fit a table in shared memory.
#pragma once

#include "gemm/cuda/problem.h"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {

struct DepthwiseArgs {
  QuantizeArgs a;    // rows of the window, batch entries are channels; its outputs are not used
  GemmProblem gemm;  // b's codes (channels, taps) and scales, the tables, c; its a and out are not
  // Where gemm.b_codes is null: b itself, batch entries of one row, to be quantized here.
  QuantizeArgs b;
  int64_t images = 1;
  int tile = 0;  // positions of a block; set by the launch
  float* out = nullptr;
  int64_t image_stride = 0, channel_stride = 0, position_stride = 0;  // of out, in elements
};

/// Whether the kernel can do it: bipolar, every row of a with a scale of its own, unsmoothed.
bool depthwise_fits(const DepthwiseArgs& args);

/// One launch.
void depthwise_conv2d(const DepthwiseArgs& args, cudaStream_t stream);

}  // namespace scmp::cuda
