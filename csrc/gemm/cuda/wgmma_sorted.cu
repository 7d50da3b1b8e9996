#include "gemm/cuda/wgmma_sorted.cuh"

namespace scmp::cuda {

void wgmma_b1_sorted(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                     const DeviceLimits& device, cudaStream_t stream) {
  launch_sorted<false>(p, bits, schedule, device, stream);
}

}  // namespace scmp::cuda
