#include "common/error.h"
#include "gemm/cuda/lanes.cuh"
#include "quant/cuda/quantize.h"
#include "quant/cuda/range.cuh"
#include "quant/cuda/segment.cuh"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kQuads = 4;  // quads that a thread keeps in registers between its two passes
constexpr int64_t kMostSegments = int64_t{1} << 30;
constexpr int64_t kWarpSegment = 32 * kQuads * 4;  // up to this many columns a warp takes a segment
constexpr int64_t kShortSegment = 32 * 4;          // up to this many it takes kQuads of them

struct Operands {
  QuantizeArgs args[2];
  int64_t blocks[2];  // thread blocks of each operand
  bool aligned[2];    // quads can be read as one
};

__device__ float level_of(const QuantizeArgs& q, const Affine& affine, float x) {
  const float top = static_cast<float>(q.scheme.qmax);
  if (!q.scheme.unipolar) {
    const float r = q.scheme.rounding == Rounding::divide ? f32_div(x, affine.factor)
                                                          : f32_mul(x, affine.factor);
    return fminf(fmaxf(rintf(r), -top), top);
  }
  const float r = q.scheme.rounding == Rounding::tensor
                      ? __fmaf_rn(x, affine.factor, affine.zero_point)
                      : f32_add(f32_div(x, affine.factor), affine.zero_point);
  return f32_add(fminf(fmaxf(rintf(r), 0.0f), top), 0.0f);
}

__device__ int boundary_of(const QuantizeArgs& q, int level) {
  if (q.multiplier != 0) {
    return static_cast<int>((static_cast<uint32_t>(level) * q.multiplier + q.bias) >> q.shift);
  }
  const uint32_t qmax = q.scheme.qmax;
  return static_cast<int>((2u * level * q.levels + qmax) / (2u * qmax));
}

__device__ int signed_code(const QuantizeArgs& q, float level) {
  const int signed_level = static_cast<int>(level);
  const int boundary = boundary_of(q, abs(signed_level));
  return signed_level < 0 ? -boundary : boundary;
}

// Four codes of a gemm operand, at positions i .. i + 3 of the segment.
__device__ void write_codes(const QuantizeArgs& q, const Segment& s, int64_t i, const Quad& level) {
  int code[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) code[j] = i + j < s.count ? signed_code(q, level.x[j]) : 0;
  int16_t* to;
  int64_t room = 4;
  if (q.output == Output::signed_codes) {
    to = q.codes + s.row * q.source.dim + s.first + i;
    room = s.count - i;
  } else {
    if (q.cycles != nullptr) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (code[j] == 0) continue;
        const int64_t lane = lane_of_position(q.lane_of, q.lanes, i + j);
        const int cycles = q.cycles[lane * (q.levels + 1) + abs(code[j])];
        code[j] = code[j] < 0 ? -cycles : cycles;
      }
    }
    const StageLayout& l = q.layout;
    const int shift = __ffs(l.positions) - 1;
    const int64_t stage = s.batch * l.stages + s.chunk * l.stages_per_chunk + (i >> shift);
    to = q.codes + ((stage * l.rows_padded + s.within) << shift) + (i & (l.positions - 1));
    if (l.positions < 4) {  // neighbours in different stages
      for (int j = 0; j < 4 && i + j < l.stages_per_chunk * l.positions; ++j) {
        to[(j >> shift) * (l.rows_padded << shift) + (j & (l.positions - 1))] =
            static_cast<int16_t>(code[j]);
      }
      return;
    }
  }
  if (room >= 4 && (reinterpret_cast<uintptr_t>(to) & 7) == 0) {
    *reinterpret_cast<uint2*>(to) = make_uint2((code[0] & 0xffff) | code[1] << 16,
                                               (code[2] & 0xffff) | code[3] << 16);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j < room) to[j] = static_cast<int16_t>(code[j]);
  }
}

// Element i of the segment as the public quantizers return it.
__device__ void write_element(const QuantizeArgs& q, const Segment& s, int64_t i, float level) {
  const int signed_level = static_cast<int>(level);
  const int64_t flat = s.row * q.source.dim + s.first + i;
  switch (q.output) {
    case Output::bipolar_codes:
      q.codes[flat] = static_cast<int16_t>(boundary_of(q, abs(signed_level)));
      q.signs[flat] = static_cast<int8_t>((signed_level > 0) - (signed_level < 0));
      break;
    case Output::unipolar_codes:
      q.wide_codes[flat] = boundary_of(q, signed_level);
      break;
    case Output::symmetric_levels:
      q.levels_out[flat] = level;
      q.signs[flat] = signed_level < 0 ? -1 : 1;
      break;
    case Output::asymmetric_levels:
      q.levels_out[flat] = level;
      break;
    default:
      break;
  }
}

__device__ void write_row_outputs(const QuantizeArgs& q, const Segment& s, const Affine& affine) {
  if (q.scales) {
    q.scales[q.scales_transposed ? (s.batch * q.chunks + s.chunk) * q.source.rows + s.within
                                 : s.row * q.chunks + s.chunk] = affine.scale;
  }
  if (q.zeros) q.zeros[s.row] = affine.zero_point;
  if (q.tensor_map && s.row == 0) {
    q.tensor_map[0] = affine.scale64;
    q.tensor_map[1] = affine.zero_point64;
  }
}

// The range of a segment, of which this thread holds `cached` and reads the rest.
template <int kGroup, int kCached>
__device__ Range range_of(const QuantizeArgs& q, const Segment& s, const Quad* cached,
                          bool aligned) {
  const bool unipolar = q.scheme.unipolar;
  const int lane = threadIdx.x % kGroup;
  Range range;
  const auto add = [&](const Quad& quad, int64_t i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (i + j < s.count) range.add(quad.x[j], unipolar);
    }
  };
#pragma unroll
  for (int k = 0; k < kCached; ++k) add(cached[k], 4 * (lane + int64_t{k} * kGroup));
  for (int64_t i = 4 * (lane + int64_t{kCached} * kGroup); i < s.count; i += 4 * kGroup) {
    add(s.read(q, i, aligned), i);
  }
  return reduce<kGroup>(range, unipolar);
}

// kSegments neighbouring segments, kGroup threads each in turn: all reads before the first use.
template <int kGroup, int kSegments, bool kGemm>
__device__ void quantize_segments(const QuantizeArgs& q, int64_t index, int64_t end, bool aligned) {
  constexpr int kCached = kQuads / kSegments;
  const int lane = threadIdx.x % kGroup;
  Quad cached[kSegments][kCached] = {};
  Segment segments[kSegments];
#pragma unroll
  for (int n = 0; n < kSegments; ++n) {
    if (index + n >= end) break;
    segments[n] = Segment(q, static_cast<uint32_t>(index + n));
#pragma unroll
    for (int k = 0; k < kCached; ++k) {
      const int64_t i = 4 * (lane + int64_t{k} * kGroup);
      if (i < segments[n].count) cached[n][k] = segments[n].read(q, i, aligned);
    }
  }
#pragma unroll
  for (int n = 0; n < kSegments; ++n) {
    if (index + n >= end) break;
    const Segment& s = segments[n];
    Affine affine = q.argument;
    if (q.range_from == RangeFrom::segment) {
      affine = range_of<kGroup, kCached>(q, s, cached[n], aligned).affine(q.scheme);
    } else if (q.range_from == RangeFrom::keys) {
      const uint32_t* keys = s.keys(q);
      affine = Range{keys[0], keys[1], keys[2]}.affine(q.scheme);
    }
    const bool dead = isnan(affine.scale);
    const bool skip_nonfinite = q.range_from == RangeFrom::argument;
    long long sum = 0;
    const auto finish = [&](Quad quad, int64_t i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool zero = dead || i + j >= s.count || (skip_nonfinite && !isfinite(quad.x[j]));
        quad.x[j] = zero ? 0.0f : level_of(q, affine, quad.x[j]);
        if (q.sums) sum += static_cast<int>(quad.x[j]);
      }
      if constexpr (kGemm) {
        write_codes(q, s, i, quad);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (i + j < s.count) write_element(q, s, i + j, quad.x[j]);
        }
      }
    };
    const int64_t padded = q.output == Output::staged_cycles
                               ? q.layout.stages_per_chunk * q.layout.positions
                               : s.count;
#pragma unroll
    for (int k = 0; k < kCached; ++k) {
      const int64_t i = 4 * (lane + int64_t{k} * kGroup);
      if (i < padded) finish(cached[n][k], i);
    }
    for (int64_t i = 4 * (lane + int64_t{kCached} * kGroup); i < padded; i += 4 * kGroup) {
      finish(s.read(q, i, aligned), i);
    }
    if (q.sums) {
      sum = reduce_sum<kGroup>(sum);
      if (lane == 0) q.sums[s.row] = __ll2float_rn(sum);
    }
    if (lane == 0) write_row_outputs(q, s, affine);
  }
}

template <int kGroup>
__device__ void range_of_segment(const QuantizeArgs& q, int64_t index, bool aligned) {
  const Segment s(q, static_cast<uint32_t>(index));
  const Range range = range_of<kGroup, 0>(q, s, nullptr, aligned);
  if (threadIdx.x % kGroup == 0) {
    uint32_t* keys = s.keys(q);
    atomicMax(keys, range.magnitude);
    atomicMax(keys + 1, range.most);
    atomicMax(keys + 2, range.least);
  }
}

// Which of the two operands this block works for, and which of its blocks it is.
__device__ int operand_of_block(const Operands& operands, int64_t& block) {
  block = blockIdx.x;
  const int which = block >= operands.blocks[0];
  if (which) block -= operands.blocks[0];
  return which;
}

template <bool kGemm>
__global__ void __launch_bounds__(kThreads, 4)
    quantize_kernel(const __grid_constant__ Operands operands) {
  int64_t block;
  const int which = operand_of_block(operands, block);
  const QuantizeArgs& q = operands.args[which];
  const bool aligned = operands.aligned[which];
  const int64_t count = q.source.total_rows() * q.chunks;
  if (q.chunk > kWarpSegment) {
    return quantize_segments<kThreads, 1, kGemm>(q, block, count, aligned);
  }
  const int64_t warp = block * (kThreads / 32) + threadIdx.x / 32;
  if (q.chunk > kShortSegment) {
    quantize_segments<32, 1, kGemm>(q, warp, count, aligned);
  } else {
    quantize_segments<32, kQuads, kGemm>(q, warp * kQuads, count, aligned);
  }
}

__global__ void __launch_bounds__(kThreads)
    find_ranges_kernel(const __grid_constant__ Operands operands) {
  int64_t block;
  const int which = operand_of_block(operands, block);
  const QuantizeArgs& q = operands.args[which];
  const bool aligned = operands.aligned[which];
  if (q.range_from != RangeFrom::keys) return;
  const int64_t count = q.source.total_rows() * q.chunks;
  if (q.chunk > kWarpSegment) return range_of_segment<kThreads>(q, block, aligned);
  const int64_t warp = block * (kThreads / 32) + threadIdx.x / 32;
  const int64_t each = q.chunk > kShortSegment ? 1 : kQuads;
  for (int64_t i = warp * each; i < min(count, (warp + 1) * each); ++i) {
    range_of_segment<32>(q, i, aligned);
  }
}

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
  return s.dim_stride == 1 && reinterpret_cast<uintptr_t>(s.data) % align == 0 &&
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
    const int64_t per_block = q.chunk > kWarpSegment    ? 1
                              : q.chunk > kShortSegment ? kThreads / 32
                                                        : kThreads / 32 * kQuads;
    all.blocks[i] = (segments + per_block - 1) / per_block;
    all.aligned[i] = quads_aligned(q);
  }
  return all;
}

}  // namespace

void find_ranges(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  const Operands all = prepare(operands, count);
  const auto blocks = static_cast<unsigned>(all.blocks[0] + all.blocks[1]);
  if (blocks > 0) find_ranges_kernel<<<blocks, kThreads, 0, stream>>>(all);
}

void quantize(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  const Operands all = prepare(operands, count);
  const auto blocks = static_cast<unsigned>(all.blocks[0] + all.blocks[1]);
  if (blocks == 0) return;
  const bool gemm = operands[0].output == Output::staged_cycles ||
                    operands[0].output == Output::signed_codes;
  (gemm ? quantize_kernel<true> : quantize_kernel<false>)<<<blocks, kThreads, 0, stream>>>(all);
}

}  // namespace scmp::cuda
