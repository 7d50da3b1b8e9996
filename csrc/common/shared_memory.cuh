// Shared memory beyond what a kernel has without asking.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "common/per_device.cuh"

namespace scmp::cuda {

/// Bytes that a block can have on the current device.
inline int64_t most_shared_memory() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

/// Lets kKernel have `bytes` of dynamic shared memory on the current device, the same number at
/// every call.
template <auto kKernel>
void allow_shared_memory(int bytes) {
  once_per_device([bytes]() -> std::optional<bool> {
    const cudaError_t status =
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return status == cudaSuccess ? std::optional<bool>(true) : std::nullopt;
  });
}

/// Lets multiprocessors that run kKernel keep as much shared memory as they have, so that a kernel
/// that needs much of it can join on them.
template <auto kKernel>
void leave_shared_memory() {
  once_per_device([]() -> std::optional<bool> {
    const cudaError_t status = cudaFuncSetAttribute(
        kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    return status == cudaSuccess ? std::optional<bool>(true) : std::nullopt;
  });
}

}  // namespace scmp::cuda
