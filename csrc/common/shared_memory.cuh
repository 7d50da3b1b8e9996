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

/// Sets an attribute of kKernel on the current device, to the same value at every call.
template <auto kKernel, cudaFuncAttribute kAttribute>
void set_attribute(int value) {
  once_per_device([value]() -> std::optional<bool> {
    const cudaError_t status = cudaFuncSetAttribute(kKernel, kAttribute, value);
    return status == cudaSuccess ? std::optional<bool>(true) : std::nullopt;
  });
}

/// Lets kKernel have `bytes` of dynamic shared memory.
template <auto kKernel>
void allow_shared_memory(int bytes) {
  set_attribute<kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize>(bytes);
}

/// Lets multiprocessors that run kKernel keep as much shared memory as they have, so that a kernel
/// that needs much of it can join on them.
template <auto kKernel>
void leave_shared_memory() {
  set_attribute<kKernel, cudaFuncAttributePreferredSharedMemoryCarveout>(
      cudaSharedmemCarveoutMaxShared);
}

}  // namespace scmp::cuda
