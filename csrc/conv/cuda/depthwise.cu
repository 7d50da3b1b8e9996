#include "conv/cuda/depthwise.h"

#include <algorithm>

#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/mma/patterns.cuh"
#include "gemm/dequantize.h"
#include "quant/cuda/fast.cuh"

namespace scmp::cuda {
namespace {

constexpr int kTile = 8 * kThreads;         // output positions of a block, about
constexpr int64_t kTableBytes = 48 * 1024;  // of shared memory

// What a block keeps in shared memory: of every tap the weight's code and pattern, how many ones
// come before each word of it, and the signed ones by signed code of a, (taps, 2 levels + 1).
struct Tables {
  uint32_t* bits;
  int *before, *weights;
  int16_t* ones;

  __device__ Tables(void* shared, const DepthwiseArgs& args) {
    const int words = args.a.window.taps * args.gemm.tables.words;
    bits = static_cast<uint32_t*>(shared);
    before = reinterpret_cast<int*>(bits + words);
    weights = before + words;
    ones = reinterpret_cast<int16_t*>(weights + args.a.window.taps);
  }
  static int64_t bytes(const DepthwiseArgs& args) {
    const int64_t taps = args.a.window.taps;
    return taps * (8 * args.gemm.tables.words + 4 + 2 * (2 * args.gemm.tables.levels + 1));
  }

  // Fills the others from the weights: ones of a weight's stream among the cycles that a code of a
  // enables, times the weight's sign.
  __device__ void fill(const DepthwiseArgs& args) const {
    const DeviceTables& t = args.gemm.tables;
    const int taps = args.a.window.taps, levels = t.levels, entries = 2 * levels + 1;
    for (int i = threadIdx.x; i < taps * t.words; i += kThreads) {
      const int tap = i / t.words;
      const int64_t lane = lane_of_position(t.lane_of, t.lanes, tap);
      bits[i] = t.b_bits[(lane * (levels + 1) + abs(weights[tap])) * t.words + i % t.words];
    }
    __syncthreads();
    for (int tap = threadIdx.x; tap < taps; tap += kThreads) {
      int count = 0;
      for (int i = tap * t.words; i < (tap + 1) * t.words; ++i) {
        before[i] = count;
        count += __popc(bits[i]);
      }
    }
    __syncthreads();
    for (int tap = 0; tap < taps; ++tap) {
      const int64_t lane = lane_of_position(t.lane_of, t.lanes, tap);
      const uint16_t* cycles_of = t.a_cycles ? t.a_cycles + lane * (levels + 1) : nullptr;
      for (int code = threadIdx.x; code <= levels; code += kThreads) {
        const int cycles = cycles_of ? cycles_of[code] : code;
        const int word = min(cycles / 32, t.words - 1), at = tap * t.words + word;
        int count = before[at] + __popc(bits[at] & thermometer(cycles, word));
        if (weights[tap] < 0) count = -count;
        ones[tap * entries + levels + code] = static_cast<int16_t>(count);
        ones[tap * entries + levels - code] = static_cast<int16_t>(-count);
      }
    }
  }
};

// Codes and scale of one channel's weights, by one warp.
__device__ void quantize_weights(const QuantizeArgs& b, unsigned channel, int taps, int* weights,
                                 float& scale) {
  const auto weight = [&](int tap) {
    const Source& s = b.source;
    return load(s.dtype, s.data, channel * s.batch_stride + tap * s.dim_stride);
  };
  Range range;
  for (int tap = threadIdx.x; tap < taps; tap += 32) {
    range.magnitude = max(range.magnitude, Range::bits_of(weight(tap)));
  }
  const Affine affine =
      reduce<32>(range, false).bipolar_affine(b.scheme, reciprocal_qmax(b.scheme));
  const FastCodes codes(b, affine);
  for (int tap = threadIdx.x; tap < taps; tap += 32) {
    weights[tap] = codes(make_float4(weight(tap), 0.0f, 0.0f, 0.0f)).x;
  }
  if (threadIdx.x == 0) scale = affine.scale;
}

// One input, or 0 outside of it.
template <DType kDType>
__device__ __forceinline__ float input_at(const QuantizeArgs& q, int64_t plane, int y, int x) {
  const Window& w = q.window;
  const bool inside = static_cast<uint32_t>(y) < static_cast<uint32_t>(w.height) &&
                      static_cast<uint32_t>(x) < static_cast<uint32_t>(w.width);
  return inside ? load(kDType, q.source.data, plane + y * w.y_stride + x * w.x_stride) : 0.0f;
}

// The inputs of one output, four at a time in the order of the taps; zeros past the last one. Of
// 3 x 3 taps they stay in registers.
template <DType kDType, bool kThree>
struct Inputs {
  const QuantizeArgs& q;
  int64_t plane;  // elements to it
  int y, x;       // of the window's corner
  float kept[kThree ? 12 : 1];

  // Steps that are the same for all positions come from outside.
  __device__ __forceinline__ void read(const int (&offsets)[9]) {
    if (!kThree) return;
    const Window& w = q.window;
    bool rows[3], columns[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      rows[i] = static_cast<uint32_t>(y + i * w.dilation_y) < static_cast<uint32_t>(w.height);
      columns[i] = static_cast<uint32_t>(x + i * w.dilation_x) < static_cast<uint32_t>(w.width);
    }
    const int64_t corner = plane + y * w.y_stride + x * w.x_stride;
#pragma unroll
    for (int i = 0; i < 9; ++i) {
      const bool inside = rows[i / 3] & columns[i % 3];
      kept[kThree ? i : 0] = inside ? load(kDType, q.source.data, corner + offsets[i]) : 0.0f;
    }
#pragma unroll
    for (int i = 9; i < 12; ++i) kept[kThree ? i : 0] = 0.0f;
  }
  // Calls f(first tap, four values).
  template <typename F>
  __device__ __forceinline__ void each_four(const F& f) const {
    if constexpr (kThree) {
#pragma unroll
      for (int i = 0; i < 12; i += 4) {
        f(i, make_float4(kept[i], kept[i + 1], kept[i + 2], kept[i + 3]));
      }
    } else {
      int ky = 0, kx = 0;
      for (int tap = 0; tap < q.window.taps; tap += 4) {
        float four[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          four[j] = tap + j < q.window.taps
                        ? input_at<kDType>(q, plane, y + ky * q.window.dilation_y,
                                           x + kx * q.window.dilation_x)
                        : 0.0f;
          if (++kx == q.window.kernel_x) {
            kx = 0;
            ++ky;
          }
        }
        f(tap, make_float4(four[0], four[1], four[2], four[3]));
      }
    }
  }
};

template <DType kDType, bool kThree>
__global__ void __launch_bounds__(kThreads)
    depthwise_kernel(const __grid_constant__ DepthwiseArgs args, unsigned tiles) {
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ int damaged;
  __shared__ float b_scale;
  const QuantizeArgs& q = args.a;
  const Window& w = q.window;
  const int levels = args.gemm.tables.levels, entries = 2 * levels + 1;
  const unsigned plane = blockIdx.x / tiles, tile = blockIdx.x - plane * tiles;
  const auto channels = static_cast<unsigned>(q.source.batches);
  const unsigned image = plane / channels, channel = plane - image * channels;

  const Tables tables(shared, args);
  if (threadIdx.x == 0) damaged = 0;
  __syncthreads();
  if (args.gemm.b_codes) {
    for (int tap = threadIdx.x; tap < w.taps; tap += kThreads) {
      bool bad = false;
      tables.weights[tap] =
          checked_code(args.gemm, args.gemm.b_codes[int64_t{channel} * w.taps + tap], bad);
      if (bad) damaged = 1;
    }
    if (threadIdx.x == 0) b_scale = args.gemm.dequantizer.b_scale[channel];
  } else if (threadIdx.x < 32) {
    quantize_weights(args.b, channel, w.taps, tables.weights, b_scale);
  }
  __syncthreads();
  tables.fill(args);
  __syncthreads();

  const Dequantizer& dequantizer = args.gemm.dequantizer;
  const float scale = damaged ? quiet_nan() : b_scale;
  float* out = args.out + image * args.image_stride + channel * args.channel_stride;
  int offsets[9];
#pragma unroll
  for (int i = 0; i < 9; ++i) {
    offsets[i] =
        static_cast<int>(i / 3 * w.dilation_y * w.y_stride + i % 3 * w.dilation_x * w.x_stride);
  }
  const float reciprocal = reciprocal_qmax(q.scheme);
  const int end = min(w.positions, static_cast<int>(tile + 1) * args.tile);
  for (int position = tile * args.tile + threadIdx.x; position < end; position += kThreads) {
    const int out_y = position / w.positions_x, out_x = position - out_y * w.positions_x;
    Inputs<kDType, kThree> inputs{q, image * w.image_stride + channel * w.group_stride,
                                  out_y * w.stride_y - w.pad_y, out_x * w.stride_x - w.pad_x};
    inputs.read(offsets);
    Range range;
    inputs.each_four(
        [&](int, const float4& x) { range.magnitude = max(range.magnitude, most_of(x)); });
    const Affine affine = range.bipolar_affine(q.scheme, reciprocal);
    const FastCodes codes(q, affine);
    const int16_t* at = tables.ones + levels;
    int sum = 0;
    inputs.each_four([&](int tap, const float4& x) {
      const int4 code = codes(x);
      const int signed_codes[4] = {code.x, code.y, code.z, code.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (kThree ? tap + j < 9 : tap + j < w.taps)
          sum += at[(tap + j) * entries + signed_codes[j]];
      }
    });
    out[position * args.position_stride] =
        scaled_value(static_cast<float>(sum), dequantizer.c, affine.scale, scale);
  }
}

}  // namespace

bool depthwise_fits(const DepthwiseArgs& args) {
  const QuantizeArgs& q = args.a;
  const int64_t tiles = (int64_t{q.window.positions} + kTile - 1) / kTile;
  return !q.scheme.unipolar && q.range_from == RangeFrom::segment && q.multiplier != 0 &&
         (args.gemm.b_codes || args.b.multiplier != 0) && q.scheme.rounding != Rounding::tensor &&
         q.source.smoothing == Smoothing::none && args.gemm.tables.b_bits != nullptr &&
         args.gemm.dequantizer.kind == Epilogue::row && Tables::bytes(args) <= kTableBytes &&
         args.images * q.source.batches * tiles < (int64_t{1} << 31);
}

void depthwise_conv2d(const DepthwiseArgs& given, cudaStream_t stream) {
  const QuantizeArgs& q = given.a;
  const auto tiles = static_cast<unsigned>((q.window.positions + kTile - 1) / kTile);
  DepthwiseArgs args = given;  // tiles of one size, in whole rounds of the block
  args.tile = (q.window.positions / static_cast<int>(tiles) / kThreads + 1) * kThreads;
  const auto blocks = static_cast<unsigned>(args.images * q.source.batches * tiles);
  const auto bytes = static_cast<size_t>(Tables::bytes(args));
  const Window& w = q.window;
  const bool three = w.taps == 9 && w.kernel_x == 3 &&
                     within_reach(2 * int64_t{w.dilation_y}, w.y_stride) &&
                     within_reach(2 * int64_t{w.dilation_x}, w.x_stride);
  const auto launch = [&](auto dtype) {
    constexpr DType kDType = decltype(dtype)::value;
    const auto kernel = three ? depthwise_kernel<kDType, true> : depthwise_kernel<kDType, false>;
    kernel<<<blocks, kThreads, bytes, stream>>>(args, tiles);
  };
  with_dtype(q.source.dtype, launch);
}

}  // namespace scmp::cuda
