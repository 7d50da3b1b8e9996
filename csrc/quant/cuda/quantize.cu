#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/error.h"
#include "gemm/cuda/lanes.cuh"
#include "quant/affine.h"
#include "quant/cuda/quantize.h"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCached = 16;  // values of a segment that a thread keeps in registers
constexpr int64_t kMostSegments = int64_t{1} << 30;
constexpr int64_t kWarpSegment = 512;  // up to this many columns a warp takes a segment

struct Operands {
  QuantizeArgs args[2];
  int64_t blocks[2];  // thread blocks of each operand
};

__device__ float load(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DType::float16:
      return __half2float(static_cast<const __half*>(data)[i]);
    case DType::bfloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    case DType::float64:
      return static_cast<float>(static_cast<const double*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

// One segment: a row, or one chunk of it.
struct Segment {
  const QuantizeArgs& q;
  int64_t row, chunk, first, count, offset;
  const float* plain;  // the values themselves, where they are contiguous float32
  int16_t* codes;      // gemm_codes: position 0

  // 32-bit divisions: prepare() refuses more segments.
  __device__ Segment(const QuantizeArgs& args, uint32_t index) : q(args) {
    const auto chunks = static_cast<uint32_t>(q.chunks);
    row = index / chunks;
    chunk = index % chunks;
    const Source& s = q.source;
    first = chunk * q.chunk;
    count = min(q.chunk, s.dim - first);
    const int64_t batch = static_cast<uint32_t>(row) / static_cast<uint32_t>(s.rows);
    const int64_t within = row - batch * s.rows;
    offset = batch * s.batch_stride + within * s.row_stride;
    plain = s.dtype == DType::float32 && s.dim_stride == 1 && s.smoothing == Smoothing::none
                ? static_cast<const float*>(s.data) + offset + first
                : nullptr;
    const CodeLayout& l = q.layout;
    codes = q.codes + ((batch * l.stages + chunk * l.stages_per_chunk) * l.rows_padded + within) *
                          l.positions;
  }

  __device__ float value(int64_t i) const {
    if (plain) return plain[i];
    const Source& s = q.source;
    const int64_t d = first + i;
    float x = load(s.dtype, s.data, offset + d * s.dim_stride);
    if (s.smoothing == Smoothing::none) return x;
    const float scale = load(q.smooth_dtype, q.smooth_scales, d * q.smooth_stride);
    if (!(scale > 0.0f && scale < __int_as_float(0x7f800000))) return quiet_nan();
    return s.smoothing == Smoothing::divide ? f32_div(x, scale) : f32_mul(x, scale);
  }

  __device__ int64_t group() const {
    if (q.group_kind == 2) return 0;
    const int64_t batch = row / q.source.rows, within = row % q.source.rows;
    if (q.group_kind == 1) return batch;
    const int64_t per_batch = (q.source.rows - 1) / q.rows_per_group + 1;
    return batch * per_batch + within / q.rows_per_group;
  }
  __device__ uint32_t* keys() const { return q.range_keys + (group() * q.chunks + chunk) * 3; }
};

// Extremes as unsigned keys in float order, 0 meaning "nothing yet": |x| bits, max, and min
// flipped.
struct Range {
  uint32_t magnitude = 0, most = 0, least = 0;

  __device__ static uint32_t ordered(float x) {
    const uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  }
  __device__ static float from_ordered(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
  }
  __device__ void add(float x, bool unipolar) {
    magnitude = max(magnitude, __float_as_uint(x) & 0x7fffffffu);
    if (!unipolar) return;  // |x| is enough
    const uint32_t key = ordered(x);
    most = max(most, key);
    least = max(least, ~key);
  }
  __device__ void merge(const Range& o) {
    magnitude = max(magnitude, o.magnitude);
    most = max(most, o.most);
    least = max(least, o.least);
  }
  __device__ Affine affine(const QuantScheme& scheme) const {
    if (magnitude >= 0x7f800000u) return nonfinite_affine();
    if (!scheme.unipolar) return make_affine(scheme, 0.0f, __uint_as_float(magnitude));
    if (most == 0) return make_affine(scheme, 0.0f, 0.0f);
    return make_affine(scheme, from_ordered(~least), from_ordered(most));
  }
};

template <int kGroup>
__device__ Range reduce(Range range, bool unipolar) {
  for (int step = 16; step > 0; step /= 2) {
    if (!unipolar) {
      range.magnitude = max(range.magnitude, __shfl_xor_sync(~0u, range.magnitude, step));
      continue;
    }
    range.merge({__shfl_xor_sync(~0u, range.magnitude, step),
                 __shfl_xor_sync(~0u, range.most, step), __shfl_xor_sync(~0u, range.least, step)});
  }
  if constexpr (kGroup > 32) {
    __shared__ Range parts[kThreads / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = range;
    __syncthreads();
    for (const Range& part : parts) range.merge(part);
  }
  return range;
}

template <int kGroup>
__device__ long long reduce_sum(long long sum) {
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if constexpr (kGroup > 32) {
    __shared__ long long parts[kThreads / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (long long part : parts) sum += part;
  }
  return sum;
}

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

// Position i of a gemm operand. A stage's positions are a power of two.
__device__ void write_code(const Segment& s, int64_t i, int code) {
  const QuantizeArgs& q = s.q;
  if (q.cycles != nullptr && code != 0) {
    const int64_t lane = lane_of_position(q.lane_of, q.lanes, i);
    const int cycles = q.cycles[lane * (q.levels + 1) + abs(code)];
    code = code < 0 ? -cycles : cycles;
  }
  const int shift = __ffs(q.layout.positions) - 1;
  s.codes[(i >> shift) * q.layout.rows_padded * q.layout.positions +
          (i & (q.layout.positions - 1))] = static_cast<int16_t>(code);
}

// Writes what the caller asked for element i of the segment.
__device__ void write_element(const Segment& s, int64_t i, float level) {
  const QuantizeArgs& q = s.q;
  const int signed_level = static_cast<int>(level);
  const int64_t flat = s.row * q.source.dim + s.first + i;
  switch (q.output) {
    case Output::gemm_codes: {
      const int boundary = boundary_of(q, abs(signed_level));
      write_code(s, i, signed_level < 0 ? -boundary : boundary);
      break;
    }
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
  }
}

__device__ void write_row_outputs(const Segment& s, const Affine& affine) {
  const QuantizeArgs& q = s.q;
  if (q.scales) {
    const int64_t rows = q.source.rows, batch = s.row / rows;
    q.scales[q.scales_transposed ? (batch * q.chunks + s.chunk) * rows + s.row % rows
                                 : s.row * q.chunks + s.chunk] = affine.scale;
  }
  if (q.zeros) q.zeros[s.row] = affine.zero_point;
  if (q.tensor_affine && s.row == 0) *q.tensor_affine = affine;
}

template <int kGroup>
__device__ void quantize_segment(const QuantizeArgs& q, uint32_t index, float* cache) {
  const Segment s(q, index);
  // This thread's first values, read once: the j-th at cached[j * kThreads].
  float* cached = cache + threadIdx.x;
  const int lane = threadIdx.x % kGroup;
  const int64_t mine = s.count > lane ? (s.count - lane + kGroup - 1) / kGroup : 0;
  const int kept = static_cast<int>(min(mine, int64_t{kCached}));
  if (s.plain) {
#pragma unroll 8
    for (int j = 0; j < kept; ++j) cached[j * kThreads] = s.plain[lane + j * kGroup];
  } else {
    for (int j = 0; j < kept; ++j) cached[j * kThreads] = s.value(lane + j * kGroup);
  }
  const bool unipolar = q.scheme.unipolar;
  Affine affine = q.argument;
  if (q.range_from == RangeFrom::segment) {
    Range range;
    for (int j = 0; j < kept; ++j) range.add(cached[j * kThreads], unipolar);
    for (int64_t j = kept; j < mine; ++j) range.add(s.value(lane + j * kGroup), unipolar);
    affine = reduce<kGroup>(range, unipolar).affine(q.scheme);
  } else if (q.range_from == RangeFrom::keys) {
    const uint32_t* keys = s.keys();
    affine = Range{keys[0], keys[1], keys[2]}.affine(q.scheme);
  }
  const bool dead = isnan(affine.scale);
  const bool skip_nonfinite = q.range_from == RangeFrom::argument;
  long long sum = 0;
#pragma unroll 2
  for (int64_t j = 0; j < mine; ++j) {
    const int64_t i = lane + j * kGroup;
    const float x = j < kept ? cached[j * kThreads] : s.value(i);
    const float level = dead || (skip_nonfinite && !isfinite(x)) ? 0.0f : level_of(q, affine, x);
    sum += static_cast<int>(level);
    write_element(s, i, level);
  }
  if (q.output == Output::gemm_codes) {  // the rest of the last stage
    const int64_t padded = q.layout.stages_per_chunk * q.layout.positions;
    for (int64_t i = s.count + lane; i < padded; i += kGroup) write_code(s, i, 0);
  }
  if (q.sums) {
    sum = reduce_sum<kGroup>(sum);
    if (lane == 0) q.sums[s.row] = __ll2float_rn(sum);
  }
  if (lane == 0) write_row_outputs(s, affine);
}

template <int kGroup>
__device__ void range_of_segment(const QuantizeArgs& q, uint32_t index) {
  const Segment s(q, index);
  Range range;
  for (int64_t i = threadIdx.x % kGroup; i < s.count; i += kGroup)
    range.add(s.value(i), q.scheme.unipolar);
  range = reduce<kGroup>(range, q.scheme.unipolar);
  if (threadIdx.x % kGroup == 0) {
    uint32_t* keys = s.keys();
    atomicMax(keys, range.magnitude);
    atomicMax(keys + 1, range.most);
    atomicMax(keys + 2, range.least);
  }
}

template <bool kRanges>
__global__ void __launch_bounds__(kThreads) segments(const __grid_constant__ Operands operands) {
  __shared__ float cache[kRanges ? 1 : kCached * kThreads];
  int64_t block = blockIdx.x;
  const int which = block >= operands.blocks[0];
  if (which) block -= operands.blocks[0];
  const QuantizeArgs& q = operands.args[which];
  if (kRanges && q.range_from != RangeFrom::keys) return;
  const int64_t count = q.source.total_rows() * q.chunks;
  if (q.chunk <= kWarpSegment) {
    const int64_t index = block * (kThreads / 32) + threadIdx.x / 32;
    if (index >= count) return;
    if constexpr (kRanges) {
      range_of_segment<32>(q, index);
    } else {
      quantize_segment<32>(q, index, cache);
    }
  } else if constexpr (kRanges) {
    range_of_segment<kThreads>(q, block);
  } else {
    quantize_segment<kThreads>(q, block, cache);
  }
}

Operands prepare(const QuantizeArgs* operands, int count) {
  Operands all{};
  for (int i = 0; i < count; ++i) {
    all.args[i] = operands[i];
    const int64_t segments = operands[i].source.total_rows() * operands[i].chunks;
    require(segments <= kMostSegments, "rows times chunks must be at most ", kMostSegments,
            " on CUDA, got ", segments);
    const int per_block = operands[i].chunk <= kWarpSegment ? kThreads / 32 : 1;
    all.blocks[i] = (segments + per_block - 1) / per_block;
  }
  return all;
}

template <bool kRanges>
void launch(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  const Operands all = prepare(operands, count);
  const int64_t blocks = all.blocks[0] + all.blocks[1];
  if (blocks > 0) segments<kRanges><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(all);
}

}  // namespace

void find_ranges(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  launch<true>(operands, count, stream);
}

void quantize(const QuantizeArgs* operands, int count, cudaStream_t stream) {
  launch<false>(operands, count, stream);
}

}  // namespace scmp::cuda
