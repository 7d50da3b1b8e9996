#include "ops/cuda/gemm.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "gemm/cuda/few_rows.h"
#include "gemm/cuda/finish.h"
#include "gemm/cuda/mma_b1.h"
#include "gemm/cuda/mma_s8.h"
#include "gemm/cuda/plain.h"
#include "ops/cuda/kernel_choice.h"

namespace scmp::cuda {
namespace {

constexpr int64_t kSlabBytes = int64_t{145} << 20;     // of expanded bits
constexpr int64_t kPartialBytes = int64_t{128} << 20;  // of sums, when the K axis is split

at::Tensor bytes_like(int64_t bytes, const at::Tensor& like) {
  return at::empty({bytes}, like.options().dtype(at::kByte));
}

// Sums of `parts` parts of every chunk.
at::Tensor allocate_partial(GemmProblem& p, int64_t parts, const at::Tensor& like) {
  p.slots = p.chunks * parts;
  const at::Tensor sums =
      bytes_like(p.slots * p.batches * p.n * p.m * static_cast<int64_t>(sizeof(int32_t)), like);
  p.partial = reinterpret_cast<int32_t*>(sums.mutable_data_ptr());
  return sums;
}

// The same where a kernel would leave most of the device idle: few rows and columns.
at::Tensor split_if_small(GemmProblem& p, int64_t parts, const at::Tensor& like) {
  if (parts <= 1) return {};
  const int64_t slots = p.chunks > 1 ? p.chunks : parts;
  const int64_t bytes = slots * p.batches * p.n * p.m * static_cast<int64_t>(sizeof(int32_t));
  if (bytes > kPartialBytes) return {};
  return allocate_partial(p, p.chunks > 1 ? 1 : parts, like);
}

// Behind the expanded bits: the flags of columns with damaged codes.
int64_t flag_bytes(const GemmProblem& p) { return p.batches * p.m; }
uint8_t* flags_of(const at::Tensor& expanded, const GemmProblem& p) {
  auto* bytes = static_cast<uint8_t*>(const_cast<void*>(expanded.const_data_ptr()));
  return bytes + expanded.numel() - flag_bytes(p);
}

void run_mma_b1(GemmProblem& p, const at::Tensor& like, const at::Tensor& expanded,
                const DeviceLimits& device, cudaStream_t stream) {
  const int64_t tiles = mma_b1_tiles(p), one = mma_b1_workspace(p, 1);
  const bool ready = expanded.defined() && expanded.numel() == tiles * one + flag_bytes(p);
  if (ready) p.damaged = flags_of(expanded, p);
  const int64_t slab = ready ? tiles : std::clamp<int64_t>(kSlabBytes / one, 1, tiles);
  const at::Tensor sums = split_if_small(p, mma_b1_parts(p, slab, device), like);
  const at::Tensor bits = ready ? expanded : bytes_like(slab * one, like);
  mma_b1_gemm(p, const_cast<void*>(bits.const_data_ptr()), slab, ready, device, stream);
  if (sums.defined()) finish(p, stream);
}

}  // namespace

void run_gemm(GemmProblem p, const at::Tensor& like, const at::Tensor& expanded) {
  const DeviceLimits device = current_device_limits();
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  switch (choose_kernel(p, device)) {
    case Kernel::few_rows: {
      const at::Tensor sums = allocate_partial(p, few_rows_parts(p, device), like);
      few_rows_gemm(p, device, stream);
      finish(p, stream);
      break;
    }
    case Kernel::mma_b1:
      run_mma_b1(p, like, expanded, device, stream);
      break;
    case Kernel::mma_s8: {
      const at::Tensor sums = split_if_small(p, mma_s8_parts(p, device), like);
      mma_s8_gemm(p, device, stream);
      if (sums.defined()) finish(p, stream);
      break;
    }
    default:
      plain_gemm(p, stream);
  }
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

at::Tensor expand_bits(GemmProblem p, const at::Tensor& like) {
  const DeviceLimits device = current_device_limits();
  if (!mma_b1_refuses(p, device).empty()) return bytes_like(0, like);
  const at::Tensor bits = bytes_like(mma_b1_workspace(p, mma_b1_tiles(p)) + flag_bytes(p), like);
  if (bits.numel() == 0) return bits;
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  p.damaged = flags_of(bits, p);
  C10_CUDA_CHECK(cudaMemsetAsync(p.damaged, 0, flag_bytes(p), stream));
  mma_b1_expand(p, bits.mutable_data_ptr(), device, stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return bits;
}

}  // namespace scmp::cuda
