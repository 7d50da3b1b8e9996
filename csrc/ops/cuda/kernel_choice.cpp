#include "ops/cuda/kernel_choice.h"

#include <ATen/cuda/CUDAContext.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "common/error.h"
#include "gemm/cuda/mma_b1.h"

namespace scmp::cuda {
namespace {

constexpr std::array<const char*, 3> kNames = {"auto", "mma_b1", "plain"};

std::atomic<Kernel> forced{Kernel::automatic};

}  // namespace

std::vector<std::string> kernel_names() { return {kNames.begin() + 1, kNames.end()}; }

void force_kernel(const std::string& name) {
  const auto it = std::find(kNames.begin(), kNames.end(), name);
  require(it != kNames.end(), "set_cuda_kernel: name must be one of auto, mma_b1, plain, got '",
          name, "'");
  forced = static_cast<Kernel>(it - kNames.begin());
}

std::string forced_kernel() { return kNames[static_cast<size_t>(forced.load())]; }

int shared_memory_per_block() {
  return static_cast<int>(at::cuda::getCurrentDeviceProperties()->sharedMemPerBlockOptin);
}

Kernel choose_kernel(const GemmProblem& problem) {
  const Kernel wanted = forced.load(std::memory_order_relaxed);
  if (wanted == Kernel::plain) return Kernel::plain;
  const std::string why = mma_b1_refuses(problem, at::cuda::getCurrentDeviceProperties()->major,
                                         shared_memory_per_block());
  require(wanted == Kernel::automatic || why.empty(), "kernel mma_b1 cannot run this: ", why);
  return why.empty() ? Kernel::mma_b1 : Kernel::plain;
}

}  // namespace scmp::cuda
