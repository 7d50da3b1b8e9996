// The wgmma b1 kernel with rows and columns of the output exchanged, which compiles beside the
// others.
#include "gemm/cuda/wgmma_b1.cuh"

namespace scmp::cuda {

void wgmma_b1_transposed(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                         const DeviceLimits& device, cudaStream_t stream) {
  launch_bipolar<true>(p, bits, schedule, device, stream);
}

}  // namespace scmp::cuda
