#include "ops/cuda/kernel_choice.h"

#include <ATen/cuda/CUDAContext.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "common/error.h"
#include "gemm/cuda/few_rows.h"
#include "gemm/cuda/mma_b1.h"
#include "gemm/cuda/mma_s8.h"
#include "gemm/cuda/wgmma_b1.h"

namespace scmp::cuda {
namespace {

constexpr std::array<const char*, 6> kNames = {"auto",   "few_rows", "wgmma_b1",
                                               "mma_b1", "mma_s8",   "plain"};

std::atomic<Kernel> forced{Kernel::automatic};

std::string refusal(Kernel kernel, const GemmProblem& problem, const DeviceLimits& device) {
  switch (kernel) {
    case Kernel::few_rows:
      return few_rows_refuses(problem, device);
    case Kernel::wgmma_b1:
      return wgmma_b1_refuses(problem, device);
    case Kernel::mma_b1:
      return mma_b1_refuses(problem, device);
    case Kernel::mma_s8:
      return mma_s8_refuses(problem, device);
    default:
      return "";
  }
}

}  // namespace

std::vector<std::string> kernel_names() { return {kNames.begin() + 1, kNames.end()}; }

void force_kernel(const std::string& name) {
  const auto it = std::find(kNames.begin(), kNames.end(), name);
  std::string allowed;
  for (const char* known : kNames) allowed += (allowed.empty() ? "" : ", ") + std::string(known);
  require(it != kNames.end(), "set_cuda_kernel: name must be one of ", allowed, ", got '", name,
          "'");
  forced = static_cast<Kernel>(it - kNames.begin());
}

std::string forced_kernel() { return kNames[static_cast<size_t>(forced.load())]; }

DeviceLimits current_device_limits() {
  const cudaDeviceProp* properties = at::cuda::getCurrentDeviceProperties();
  DeviceLimits limits;
  limits.major = properties->major;
  limits.multiprocessors = properties->multiProcessorCount;
  limits.shared_memory = static_cast<int>(properties->sharedMemPerBlockOptin);
  return limits;
}

Kernel choose_kernel(const GemmProblem& problem, const DeviceLimits& device) {
  const Kernel wanted = forced.load(std::memory_order_relaxed);
  if (wanted != Kernel::automatic) {
    const std::string why = refusal(wanted, problem, device);
    require(why.empty(), "kernel ", forced_kernel(), " cannot run this: ", why);
    return wanted;
  }
  for (Kernel kernel : {Kernel::few_rows, Kernel::wgmma_b1, Kernel::mma_b1, Kernel::mma_s8}) {
    if (refusal(kernel, problem, device).empty()) return kernel;
  }
  return Kernel::plain;
}

}  // namespace scmp::cuda
