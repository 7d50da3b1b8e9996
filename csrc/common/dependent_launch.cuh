// Kernels that may start before the one in front of them on the stream is over (programmatic
// dependent launch, compute capability 9.0 and later; elsewhere they start after it).
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "common/per_device.cuh"

namespace scmp::cuda {

/// Whether the code of kKernel that the current device runs waits by itself: code made from PTX
/// for an older device does not, whatever the device could do.
template <auto kKernel>
bool waits_by_itself() {
  return once_per_device([]() -> std::optional<bool> {
    cudaFuncAttributes code = {};
    if (cudaFuncGetAttributes(&code, kKernel) != cudaSuccess) return std::nullopt;
    return code.ptxVersion >= 90 && code.binaryVersion >= 90;
  });
}

/// Launches kKernel, which must call wait_for_previous_kernel() in every thread before it reads
/// what the previous kernel writes or writes anything itself. Or all that it reads was written, and
/// all that it overwrites done with, before the previous kernel started: then one thread waits at
/// its end, so that whoever comes after both starts after both.
template <auto kKernel, typename... Args>
void launch_dependent(dim3 grid, dim3 block, int shared_bytes, cudaStream_t stream,
                      Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute serialization = {};
  serialization.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  serialization.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &serialization;
  config.numAttrs = waits_by_itself<kKernel>() ? 1 : 0;
  cudaLaunchKernelEx(&config, kKernel, std::forward<Args>(args)...);
}

/// Returns when the previous kernel is over and its writes are visible.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel start once all blocks of this one have.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace scmp::cuda
