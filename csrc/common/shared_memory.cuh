// Shared memory beyond what a kernel has without asking.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

namespace scmp::cuda {

/// Lets kKernel have `bytes` of dynamic shared memory on the current device, the same number at
/// every call: asks once per device, as the question takes microseconds.
template <auto kKernel>
void allow_shared_memory(int bytes) {
  static std::atomic<uint64_t> asked{0};  // a bit per device
  int device = 0;
  cudaGetDevice(&device);
  const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
  if ((asked.load(std::memory_order_relaxed) & bit) != 0) return;
  const cudaError_t status =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess) asked.fetch_or(bit, std::memory_order_relaxed);
}

}  // namespace scmp::cuda
