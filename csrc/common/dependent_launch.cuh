// Kernels that may start before the one in front of them on the stream is over (programmatic
// dependent launch, compute capability 9.0 and later; elsewhere they start after it).
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace scmp::cuda {

/// Launches `kernel`, which must call wait_for_previous_kernel() in every thread before it reads
/// what that kernel writes or writes anything itself. `early`: the device can do this.
template <typename... Params, typename... Args>
void launch_dependent(void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes,
                      bool early, cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute serialization = {};
  serialization.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  serialization.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &serialization;
  config.numAttrs = early ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
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
