// Stands in for wgmma_b1.cu in builds without sm_90a code: refuses, so the rest is never called.
#include "gemm/cuda/wgmma_b1.h"

namespace scmp::cuda {

std::string wgmma_b1_refuses(const GemmProblem&, const DeviceLimits&) {
  return "this build has no code for sm_90a";
}
bool wgmma_b1_needs_workspace(const GemmProblem&) { return true; }
int64_t wgmma_b1_workspace(const GemmProblem&, int64_t) { return 0; }
int64_t wgmma_b1_parts(const GemmProblem&, int64_t, const DeviceLimits&) { return 1; }
void wgmma_b1_gemm(const GemmProblem&, void*, int64_t, bool, const DeviceLimits&, cudaStream_t) {}
void wgmma_b1_expand(const GemmProblem&, void*, cudaStream_t) {}

}  // namespace scmp::cuda
