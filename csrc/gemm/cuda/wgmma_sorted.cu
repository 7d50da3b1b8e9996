// The wgmma b1 kernel for rows in the order of their lengths, which compiles beside the others.
#include "gemm/cuda/wgmma_b1.cuh"

namespace scmp::cuda {

void wgmma_b1_sorted(const GemmProblem& p, uint8_t* bits, const Schedule& schedule,
                     const DeviceLimits& device, cudaStream_t stream) {
  with_words(p.tables.words, [&](auto words) {
    launch<decltype(words)::value, true, Rows::sorted>(p, bits, schedule, device, stream);
  });
}

}  // namespace scmp::cuda
