#include "cpu/isa.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "common/error.h"

namespace scmp {
namespace {

constexpr std::array<const char*, 5> kNames = {"auto", "reference", "scalar", "avx2", "avx512"};

std::atomic<CpuKernel> forced{CpuKernel::automatic};

bool runs_here(CpuKernel kernel) {
#if defined(SCMP_X86)
  if (kernel == CpuKernel::avx2) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("popcnt");
  }
  if (kernel == CpuKernel::avx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vpopcntdq") &&
           runs_here(CpuKernel::avx2);
  }
#else
  if (kernel == CpuKernel::avx2 || kernel == CpuKernel::avx512) return false;
#endif
  return true;
}

CpuKernel best_here() {
  static const CpuKernel best = runs_here(CpuKernel::avx512) ? CpuKernel::avx512
                                : runs_here(CpuKernel::avx2) ? CpuKernel::avx2
                                                             : CpuKernel::scalar;
  return best;
}

}  // namespace

std::vector<std::string> available_cpu_kernels() {
  std::vector<std::string> names;
  for (size_t i = 1; i < kNames.size(); ++i) {
    if (runs_here(static_cast<CpuKernel>(i))) names.push_back(kNames[i]);
  }
  return names;
}

void force_cpu_kernel(const std::string& name) {
  const auto it = std::find(kNames.begin(), kNames.end(), name);
  require(it != kNames.end(), "set_cpu_kernel: name must be one of auto, reference, scalar, ",
          "avx2, avx512, got '", name, "'");
  const auto kernel = static_cast<CpuKernel>(it - kNames.begin());
  require(runs_here(kernel), "set_cpu_kernel: this machine cannot run '", name, "'");
  forced = kernel;
}

std::string forced_cpu_kernel() { return kNames[static_cast<size_t>(forced.load())]; }

CpuKernel current_cpu_kernel() {
  const CpuKernel kernel = forced.load(std::memory_order_relaxed);
  return kernel == CpuKernel::automatic ? best_here() : kernel;
}

Isa current_isa() {
  switch (current_cpu_kernel()) {
    case CpuKernel::avx512:
      return Isa::avx512;
    case CpuKernel::avx2:
      return Isa::avx2;
    default:
      return Isa::scalar;
  }
}

}  // namespace scmp
