// Depthwise convolution on the CPU: every channel has few weights, so the signed ones that a level
// of the input yields with each of them fit a small table.
#pragma once

#include <cstdint>

#include "common/parallel.h"
#include "quant/scheme.h"
#include "streams/prepare.h"

namespace scmp {

struct DepthwiseProblem {
  const float* x = nullptr;  // (images, channels, height, width), contiguous
  int64_t images = 0, channels = 0, height = 0, width = 0;
  int64_t kernel_y = 1, kernel_x = 1, stride_y = 1, stride_x = 1, dilation_y = 1, dilation_x = 1;
  int64_t pad_y = 0, pad_x = 0;  // above and to the left
  int64_t out_height = 0, out_width = 0;
  QuantScheme scheme;                  // bipolar, not Rounding::tensor
  const StreamSet* streams = nullptr;  // of kernel_y * kernel_x positions
  const int16_t* weights = nullptr;    // (channels, kernel_y * kernel_x), sign * code
  const float* scales = nullptr;       // (channels,)
  float c = 0.0f;                      // of the epilogue
  float* out = nullptr;                // (images, channels, out_height, out_width)
};

/// Every output position has a scale of its own, that of its window.
void depthwise_conv2d(const DepthwiseProblem& problem, const ParallelFor& parallel);

}  // namespace scmp
