#include <algorithm>

#include "common/error.h"
#include "quant/cuda/fast.cuh"
#include "quant/cuda/general.cuh"
#include "quant/cuda/quantize.h"
#include "quant/cuda/windows.cuh"

namespace scmp::cuda {
namespace {

int64_t element_bytes(DType dtype) {
  switch (dtype) {
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::float64:
      return 8;
    default:
      return 4;
  }
}

bool quads_aligned(const QuantizeArgs& q) {
  const Source& s = q.source;
  const int64_t bytes = element_bytes(s.dtype), align = bytes == 8 ? 16 : 4 * bytes;
  const auto multiple = [&](int64_t elements) { return elements * bytes % align == 0; };
  return s.smoothing == Smoothing::none && s.dim_stride == 1 && q.window.taps == 0 &&
         reinterpret_cast<uintptr_t>(s.data) % align == 0 &&
         (s.total_rows() <= 1 || (multiple(s.row_stride) && multiple(s.batch_stride))) &&
         (q.chunks == 1 || multiple(q.chunk));
}

Operands prepare(const QuantizeArgs* operands, int count) {
  Operands all{};
  for (int i = 0; i < count; ++i) {
    const QuantizeArgs& q = operands[i];
    all.args[i] = q;
    const int64_t segments = q.source.total_rows() * q.chunks;
    require(segments <= kMostSegments, "rows times chunks must be at most ", kMostSegments,
            " on CUDA, got ", segments);
    const Sharing sharing = sharing_of(q);
    const int64_t per_block = sharing == Sharing::block  ? 1
                              : sharing == Sharing::warp ? kThreads / 32
                                                         : kThreads / 32 * kQuads;
    all.blocks[i] = (segments + per_block - 1) / per_block;
    all.aligned[i] = quads_aligned(q);
  }
  return all;
}

// Whether the kernel for the usual case can do it.
bool all_usual(const QuantizeArgs* operands, int count) {
  for (int i = 0; i < count; ++i) {
    const QuantizeArgs& q = operands[i];
    const bool staged = q.output == Output::staged_cycles;
    // Groups of four stay within a row, a chunk and a stage, and fill the last stage.
    const int64_t unit = staged ? std::max(4, q.layout.positions) : 4;
    const bool split = q.output == Output::bipolar_codes;
    // Where a level's code may be 0 its sign would be lost.
    if (split && (2 * q.levels < q.scheme.qmax || reinterpret_cast<uintptr_t>(q.signs) % 4 != 0)) {
      return false;
    }
    if (!(staged || split || q.output == Output::signed_codes) || q.scheme.unipolar ||
        q.scheme.rounding == Rounding::tensor || q.range_from != RangeFrom::segment ||
        q.multiplier == 0 || !quads_aligned(q) || q.source.dim % unit != 0 || q.chunk % unit != 0 ||
        reinterpret_cast<uintptr_t>(q.codes) % 8 != 0 || q.sums || q.tensor_map ||
        q.chunk >= (int64_t{1} << 30) || (staged && q.layout.positions < 4)) {
      return false;
    }
  }
  return true;
}

using Kernel = void (*)(Operands);

void launch(const QuantizeArgs* operands, int count, cudaStream_t stream, Kernel block, Kernel warp,
            Kernel short_segments) {
  const Operands all = prepare(operands, count);
  const auto blocks = static_cast<unsigned>(all.blocks[0] + all.blocks[1]);
  if (blocks == 0) return;
  const Sharing sharing = sharing_of(operands[0]);
  const Kernel kernel = sharing == Sharing::block  ? block
                        : sharing == Sharing::warp ? warp
                                                   : short_segments;
  kernel<<<blocks, kThreads, 0, stream>>>(all);
}

}  // namespace

void find_ranges(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  launch(operands, count, stream, find_ranges_kernel<Sharing::block>,
         find_ranges_kernel<Sharing::warp>, find_ranges_kernel<Sharing::short_segments>);
}

void quantize(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  if (usual_windows(operands[0])) {
    quantize_windows(operands[0], stream);
    if (count > 1) quantize(operands + 1, count - 1, stream);
    return;
  }
  if (all_usual(operands, count)) {
    bool cycles = false;
    for (int i = 0; i < count; ++i) cycles |= operands[i].cycles != nullptr;
    return cycles ? launch(operands, count, stream, fast_quantize_kernel<Sharing::block, true>,
                           fast_quantize_kernel<Sharing::warp, true>,
                           fast_quantize_kernel<Sharing::short_segments, true>)
                  : launch(operands, count, stream, fast_quantize_kernel<Sharing::block, false>,
                           fast_quantize_kernel<Sharing::warp, false>,
                           fast_quantize_kernel<Sharing::short_segments, false>);
  }
  launch(operands, count, stream, quantize_kernel<Sharing::block>, quantize_kernel<Sharing::warp>,
         quantize_kernel<Sharing::short_segments>);
}

}  // namespace scmp::cuda
