#include <algorithm>

#include "common/error.h"
#include "quant/cuda/apart.cuh"
#include "quant/cuda/general.cuh"
#include "quant/cuda/keyed.cuh"
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

// by_warps: where a block shares a segment, one of its warps takes it.
Operands prepare(const QuantizeArgs* operands, int count, bool by_warps) {
  Operands all{};
  for (int i = 0; i < count; ++i) {
    const QuantizeArgs& q = operands[i];
    all.args[i] = q;
    const int64_t segments = q.source.total_rows() * q.chunks;
    require(segments <= kMostSegments, "rows times chunks must be at most ", kMostSegments,
            " on CUDA, got ", segments);
    const Sharing sharing = sharing_of(q);
    const int64_t per_block = sharing == Sharing::block && !by_warps ? 1
                              : sharing == Sharing::short_segments   ? kThreads / 32 * kQuads
                                                                     : kThreads / 32;
    all.blocks[i] = (segments + per_block - 1) / per_block;
    all.aligned[i] = quads_aligned(q);
  }
  return all;
}

// Whether every segment's values come in aligned groups of four that stay within a row, a chunk and
// a stage, fill the last stage, and become codes by multiplication.
bool in_quads(const QuantizeArgs& q) {
  const bool staged = q.output == Output::staged_cycles;
  const int64_t unit = staged ? std::max(4, q.layout.positions) : 4;
  return quads_aligned(q) && q.multiplier != 0 && q.source.dim % unit == 0 && q.chunk % unit == 0 &&
         q.chunk < (int64_t{1} << 30) && reinterpret_cast<uintptr_t>(q.codes) % 8 == 0 &&
         (!staged || q.layout.positions >= 4);
}

template <typename Allows>
bool all(const QuantizeArgs* operands, int count, const Allows& allows) {
  return std::all_of(operands, operands + count, allows);
}

// Whether the kernel for the usual case can do it.
bool is_usual(const QuantizeArgs& q) {
  const bool split = q.output == Output::bipolar_codes;
  // Where a level's code may be 0 its sign would be lost.
  if (split && (2 * q.levels < q.scheme.qmax || reinterpret_cast<uintptr_t>(q.signs) % 4 != 0)) {
    return false;
  }
  return (split || q.output == Output::staged_cycles || q.output == Output::signed_codes) &&
         !q.scheme.unipolar && q.scheme.rounding != Rounding::tensor &&
         q.range_from == RangeFrom::segment && in_quads(q) && !q.sums && !q.tensor_map;
}

// The same for the kernels that know the ranges.
bool is_keyed(const QuantizeArgs& q) {
  return (q.output == Output::staged_cycles || q.output == Output::signed_codes) &&
         q.range_from == RangeFrom::keys && in_quads(q);
}

// Whether four short segments at a time lie equally far apart.
bool is_apart(const QuantizeArgs& q) {
  const bool usual = is_usual(q) || (is_keyed(q) && !q.scheme.unipolar);
  return usual && q.output != Output::bipolar_codes && q.chunk <= kShortSegment &&
         q.source.dim % q.chunk == 0 &&
         (q.chunks % kQuads == 0 || (q.chunks == 1 && q.source.rows % kQuads == 0));
}

// Values of the groups where each is one piece of memory, else 0.
int64_t flat_group(const QuantizeArgs& q) {
  const Source& s = q.source;
  const bool batches_together = s.batches == 1 || s.batch_stride == s.rows * s.dim;
  if (q.chunks > 1 || q.group_kind == 0 || !quads_aligned(q) || s.dim % 4 != 0 ||
      (s.rows > 1 && s.row_stride != s.dim) || !batches_together) {
    return 0;
  }
  return (q.group_kind == 1 ? 1 : s.batches) * s.rows * s.dim;
}

using Kernel = void (*)(Operands);

void launch(const QuantizeArgs* operands, int count, cudaStream_t stream, Kernel block, Kernel warp,
            Kernel short_segments, bool by_warps = false) {
  const Operands all = prepare(operands, count, by_warps);
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
  FlatOperands flat{};
  for (int i = 0; i < count; ++i) {
    const QuantizeArgs& q = operands[i];
    flat.args[i] = q;
    flat.group_size[i] = flat_group(q);
    flat.blocks_per_group[i] = (flat.group_size[i] + kRangeBlock - 1) / kRangeBlock;
    const int64_t groups = q.group_kind == 1 ? q.source.batches : 1;
    flat.blocks[i] = q.range_from == RangeFrom::keys ? groups * flat.blocks_per_group[i] : 0;
  }
  const int64_t blocks = flat.blocks[0] + flat.blocks[1];
  if (blocks < (int64_t{1} << 31) && all(operands, count, [](const QuantizeArgs& q) {
        return q.range_from != RangeFrom::keys || flat_group(q) > 0;
      })) {
    if (blocks > 0) {
      flat_ranges_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(flat);
    }
    return;
  }
  launch(operands, count, stream, find_ranges_kernel<Sharing::block>,
         find_ranges_kernel<Sharing::warp>, find_ranges_kernel<Sharing::short_segments>);
}

namespace {

template <bool kCycles>
void quantize_usual(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  constexpr Kernel kApart = quantize_apart_kernel<false, kCycles>;
  if (all(operands, count, is_apart))
    return launch(operands, count, stream, kApart, kApart, kApart);
  launch(operands, count, stream, fast_quantize_kernel<Sharing::block, kCycles>,
         fast_quantize_kernel<Sharing::warp, kCycles>,
         fast_quantize_kernel<Sharing::short_segments, kCycles>);
}

template <bool kUnipolar, bool kCycles>
void quantize_keyed(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  if constexpr (!kUnipolar) {
    constexpr Kernel kApart = quantize_apart_kernel<true, kCycles>;
    if (all(operands, count, is_apart)) {
      return launch(operands, count, stream, kApart, kApart, kApart);
    }
  }
  constexpr Kernel kLong = keyed_quantize_kernel<kUnipolar, false, kCycles>;
  launch(operands, count, stream, kLong, kLong, keyed_quantize_kernel<kUnipolar, true, kCycles>,
         /*by_warps=*/true);
}

}  // namespace

void quantize(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  if (usual_windows(operands[0])) {
    const bool other = count > 1 && operands[1].source.total_rows() > 0;
    if (other) quantize(operands + 1, 1, stream);
    quantize_windows(operands[0], /*beside=*/other, stream);
    return;
  }
  const bool cycles =
      !all(operands, count, [](const QuantizeArgs& q) { return q.cycles == nullptr; });
  if (all(operands, count, is_usual)) {
    return cycles ? quantize_usual<true>(operands, count, stream)
                  : quantize_usual<false>(operands, count, stream);
  }
  if (all(operands, count, is_keyed)) {
    if (operands[0].scheme.unipolar) {
      return cycles ? quantize_keyed<true, true>(operands, count, stream)
                    : quantize_keyed<true, false>(operands, count, stream);
    }
    return cycles ? quantize_keyed<false, true>(operands, count, stream)
                  : quantize_keyed<false, false>(operands, count, stream);
  }
  launch(operands, count, stream, quantize_kernel<Sharing::block>, quantize_kernel<Sharing::warp>,
         quantize_kernel<Sharing::short_segments>);
}

}  // namespace scmp::cuda
