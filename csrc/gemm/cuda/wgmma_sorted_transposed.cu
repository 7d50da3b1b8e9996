// The same with rows and columns of the output exchanged, which compiles beside it.
#include "gemm/cuda/wgmma_sorted.cuh"

namespace scmp::cuda {

void wgmma_b1_sorted_transposed(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                                const DeviceLimits& device, cudaStream_t stream) {
  launch_sorted<true>(p, bits, schedule, device, stream);
}

}  // namespace scmp::cuda
