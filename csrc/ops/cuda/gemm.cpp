#include "ops/cuda/gemm.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

#include "gemm/cuda/few_rows.h"
#include "gemm/cuda/finish.h"
#include "gemm/cuda/mma_b1.h"
#include "gemm/cuda/mma_s8.h"
#include "gemm/cuda/plain.h"
#include "gemm/cuda/wgmma_b1.h"
#include "ops/cuda/kernel_choice.h"

namespace scmp::cuda {
namespace {

constexpr int64_t kSlabBytes = int64_t{145} << 20;  // of expanded bits
constexpr int64_t kMostSlabBytes = int64_t{506} << 20;
constexpr int64_t kRowBlock = 256;  // rows of a that a block of the b1 kernels takes at most
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
at::Tensor split_if_small(GemmProblem& p, int64_t parts, int64_t most_bytes,
                          const at::Tensor& like) {
  if (parts <= 1) return {};
  const int64_t slots = p.chunks > 1 ? p.chunks : parts;
  const int64_t bytes = slots * p.batches * p.n * p.m * static_cast<int64_t>(sizeof(int32_t));
  if (bytes > std::min(most_bytes, kPartialBytes)) return {};
  return allocate_partial(p, p.chunks > 1 ? 1 : parts, like);
}

// The two kernels that multiply bits of b expanded in a workspace, each in its own order.
struct B1Kernel {
  std::string (*refuses)(const GemmProblem&, const DeviceLimits&);
  bool (*needs_workspace)(const GemmProblem&);
  int64_t (*workspace)(const GemmProblem&, int64_t tiles);
  int64_t (*parts)(const GemmProblem&, int64_t tiles, const DeviceLimits&);
  void (*gemm)(const GemmProblem&, void*, int64_t tiles, bool expanded, const DeviceLimits&,
               cudaStream_t);
  void (*expand)(const GemmProblem&, void*, cudaStream_t);
  int64_t mark;  // bytes behind expanded bits, so that their size tells whose they are
};
constexpr B1Kernel kWgmma = {wgmma_b1_refuses,
                             wgmma_b1_needs_workspace,
                             wgmma_b1_workspace,
                             wgmma_b1_parts,
                             wgmma_b1_gemm,
                             wgmma_b1_expand,
                             32};
constexpr B1Kernel kMma = {mma_b1_refuses,
                           [](const GemmProblem&) { return true; },
                           mma_b1_workspace,
                           mma_b1_parts,
                           mma_b1_gemm,
                           mma_b1_expand,
                           0};

// Expanded bits, then the flags of columns with damaged codes, then the mark.
int64_t flag_bytes(const GemmProblem& p) { return p.batches * p.m; }
int64_t expanded_bytes(const GemmProblem& p, const B1Kernel& kernel) {
  return kernel.workspace(p, column_tiles(p)) + flag_bytes(p) + kernel.mark;
}
uint8_t* flags_of(const at::Tensor& expanded, const GemmProblem& p, const B1Kernel& kernel) {
  auto* bytes = static_cast<uint8_t*>(const_cast<void*>(expanded.const_data_ptr()));
  return bytes + kernel.workspace(p, column_tiles(p));
}

// Tiles whose bits are in the workspace together: as many as kSlabBytes hold, more where so few
// would leave the device idle, where blocks of rows differ in cost and must balance, or where a
// call without chunks would take more than two launches of slabs; slabs of equal size.
int64_t tiles_per_slab(const GemmProblem& p, int64_t tile_bytes, const DeviceLimits& device) {
  const int64_t tiles = column_tiles(p), row_blocks = (p.n + kRowBlock - 1) / kRowBlock;
  const int64_t most = p.sorted.order ? kMostSlabBytes : kSlabBytes;
  int64_t slab = std::max<int64_t>(1, most / tile_bytes);
  const int64_t busy = (device.multiprocessors - 4 + row_blocks - 1) / row_blocks;
  const int64_t wanted = p.chunks == 1 ? std::max(busy, (tiles + 1) / 2) : busy;
  slab = std::max(slab, std::min(wanted, kMostSlabBytes / tile_bytes));
  const int64_t slabs = (tiles + slab - 1) / slab;
  return (tiles + slabs - 1) / slabs;
}

// Whether the kernel that runs it can write its output transposed.
bool transposes(const GemmProblem& p, const DeviceLimits& device) {
  const Epilogue kind = p.dequantizer.kind;
  return p.n > kInPlaceRows &&
         (p.sorted.order || kind == Epilogue::row || kind == Epilogue::head ||
          kind == Epilogue::chunk) &&
         choose_kernel(p, device) == Kernel::wgmma_b1;
}

void run_b1(GemmProblem& p, const B1Kernel& kernel, const at::Tensor& like,
            const at::Tensor& expanded, const DeviceLimits& device, cudaStream_t stream) {
  const int64_t tiles = column_tiles(p), one = kernel.workspace(p, 1);
  const bool ready = expanded.defined() && expanded.numel() == expanded_bytes(p, kernel);
  if (ready) p.damaged = flags_of(expanded, p, kernel);
  const int64_t slab = ready ? tiles : tiles_per_slab(p, one, device);
  // finish() writes outputs in the usual order, and adds chunks of problems in that order alone.
  const bool whole = p.transposed && (p.chunks > 1 || p.image_rows > 0);
  const int64_t parts = whole ? 1 : kernel.parts(p, slab, device);
  const at::Tensor sums = split_if_small(p, parts, kMostSlabBytes - slab * one, like);
  at::Tensor bits;
  if (ready) {
    bits = expanded;
  } else if (kernel.needs_workspace(p)) {
    bits = bytes_like(slab * one, like);
  }
  void* workspace = bits.defined() ? const_cast<void*>(bits.const_data_ptr()) : nullptr;
  kernel.gemm(p, workspace, slab, ready, device, stream);
  if (sums.defined()) finish(p, stream);
}

}  // namespace

bool better_transposed(const GemmProblem& p) {
  const DeviceLimits device = current_device_limits();
  const bool tables = p.sorted.order || p.tables.a_bits;
  if (!tables || p.n > p.m - p.m / 4 || !transposes(p, device)) return false;
  if (p.chunks == 1) return true;
  // Exchanged, chunks are not spread over blocks (see run_b1).
  GemmProblem other = p;
  std::swap(other.n, other.m);
  return wgmma_b1_parts(other, column_tiles(other), device) == 1;
}

bool can_write_images(const GemmProblem& p) {
  const DeviceLimits device = current_device_limits();
  return p.batches == 1 && p.n < (int64_t{1} << 31) && transposes(p, device) &&
         wgmma_b1_parts(p, column_tiles(p), device) == 1;
}

void write_images(GemmProblem& p, int64_t image_rows) {
  p.transposed = true;
  p.image_rows = image_rows;
}

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
    case Kernel::wgmma_b1:
      run_b1(p, kWgmma, like, expanded, device, stream);
      break;
    case Kernel::mma_b1:
      run_b1(p, kMma, like, expanded, device, stream);
      break;
    case Kernel::mma_s8: {
      const at::Tensor sums = split_if_small(p, mma_s8_parts(p, device), kPartialBytes, like);
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
  for (const B1Kernel& kernel : {kWgmma, kMma}) {
    if (!kernel.refuses(p, device).empty()) continue;
    const at::Tensor bits = bytes_like(expanded_bytes(p, kernel), like);
    const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    p.damaged = flags_of(bits, p, kernel);
    C10_CUDA_CHECK(cudaMemsetAsync(p.damaged, 0, flag_bytes(p), stream));
    kernel.expand(p, bits.mutable_data_ptr(), stream);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return bits;
  }
  return bytes_like(0, like);
}

}  // namespace scmp::cuda
