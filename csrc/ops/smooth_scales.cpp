#include "ops/smooth_scales.h"

#include <c10/util/Exception.h>

#include <cmath>

namespace scmp {

at::Tensor check_smooth_values(const char* op, const at::Tensor& scales) {
  const at::Tensor values = scales.detach().to(at::kCPU, at::kFloat).contiguous();
  const float* data = values.const_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    TORCH_CHECK_VALUE(std::isfinite(data[i]) && data[i] > 0.0f, op,
                      ": smooth_scales must be positive and finite as float32, got ", data[i],
                      " at index ", i);
  }
  return values;
}

}  // namespace scmp
