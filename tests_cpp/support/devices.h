// What the operator tests run on: devices, their kernels, and comparisons across devices.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <string>
#include <vector>

#include "scmp_kernels/scmp_kernels.h"

/// The CPU, and CUDA where this build has kernels for it and the machine a GPU.
inline std::vector<at::Device> devices() {
  std::vector<at::Device> found = {at::Device(at::kCPU)};
  if (!scmp::cuda_kernels().empty() && at::hasCUDA()) found.emplace_back(at::kCUDA, 0);
  return found;
}

/// Names that ForcedKernel takes for a device.
inline std::vector<std::string> kernels(const at::Device& device) {
  return device.is_cuda() ? scmp::cuda_kernels() : scmp::cpu_kernels();
}

/// Forces one kernel of a device's kind for a scope.
class ForcedKernel {
 public:
  ForcedKernel(const at::Device& device, const std::string& name) : cuda_(device.is_cuda()) {
    set(name);
  }
  ~ForcedKernel() { set("auto"); }
  ForcedKernel(const ForcedKernel&) = delete;
  ForcedKernel& operator=(const ForcedKernel&) = delete;

 private:
  void set(const std::string& name) const {
    cuda_ ? scmp::set_cuda_kernel(name) : scmp::set_cpu_kernel(name);
  }

  bool cuda_;
};

/// Equal in dtype, shape and bits (0.0 is not -0.0), wherever the tensors are.
inline bool same_bits(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.scalar_type() != expected.scalar_type()) return false;
  const auto bits = [](const at::Tensor& x) {
    const at::Tensor host = x.cpu().contiguous();
    return host.scalar_type() == at::kFloat ? host.view(at::kInt) : host;
  };
  return at::equal(bits(actual), bits(expected));
}

/// The one line of the c10::ValueError that `call` throws, "" if none; other exceptions pass.
template <typename Call>
std::string value_error(const Call& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}
