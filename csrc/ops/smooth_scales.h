// The values of smooth_scales, where a device check may look at them.
#pragma once

#include <ATen/core/Tensor.h>

namespace scmp {

/// (D,) contiguous float32 on the CPU (a CUDA tensor is copied, which syncs); ValueError unless
/// every entry is positive and finite as float32.
at::Tensor check_smooth_values(const char* op, const at::Tensor& scales);

}  // namespace scmp
