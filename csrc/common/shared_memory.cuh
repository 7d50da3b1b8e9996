// Shared memory beyond what a kernel has without asking.
#pragma once

#include <cuda_runtime.h>

#include "common/per_device.cuh"

namespace scmp::cuda {

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

}  // namespace scmp::cuda
