// Codes of a convolution's lowered input, gathered while quantizing: bipolar, every segment its own
// group. Threads side by side work on output positions side by side, whose inputs are neighbours.
#pragma once

#include <algorithm>

#include "common/dependent_launch.cuh"
#include "common/error.h"
#include "common/shared_memory.cuh"
#include "quant/cuda/fast.cuh"

namespace scmp::cuda {

constexpr int kWindowRows = 32;              // of a block: one per lane
constexpr int kWindowColumns = 8;            // a thread works on so many neighbours at a time
constexpr int64_t kColumnBytes = 200 << 10;  // of the table of columns, at most
constexpr int64_t kWindowStatic = 4 << 10;   // of shared memory, beside it
constexpr int kValuePitch = kWindowRows + 1;
constexpr int64_t kValueBytes = 94 << 10;  // of values and the table, at most: two blocks fit
constexpr int kLeastColumns = 128;         // that 512 threads have work with
constexpr int kLeastChannels = 16;         // neighbours that are worth a warp

/// How a block comes by its rows' values: by reading them again when the range is known, or by
/// keeping them in shared memory; and then by which way neighbouring threads read neighbours.
enum class Gather { again, by_position, by_channel };
template <Gather kGather>
constexpr int kWindowThreads = kGather == Gather::again ? kThreads : 512;

/// A column of the lowered input: where it lies from a window's corner.
struct alignas(8) WindowColumn {
  int offset;       // in elements
  uint16_t dy, dx;  // in positions
};

__device__ inline WindowColumn window_column(const Window& w, uint32_t d) {
  const uint32_t channel = d / w.taps, tap = d - channel * w.taps;
  const uint32_t dy = tap / w.kernel_x * w.dilation_y, dx = tap % w.kernel_x * w.dilation_x;
  return {static_cast<int>(channel * w.channel_stride + dy * w.y_stride + dx * w.x_stride),
          static_cast<uint16_t>(dy), static_cast<uint16_t>(dx)};
}

template <DType kDType>
struct Element;
template <>
struct Element<DType::float16> {
  using Type = __half;
};
template <>
struct Element<DType::bfloat16> {
  using Type = __nv_bfloat16;
};
template <>
struct Element<DType::float32> {
  using Type = float;
};
template <>
struct Element<DType::float64> {
  using Type = double;
};

// Where one row's window lies in the input.
template <DType kDType>
struct WindowReader {
  const typename Element<kDType>::Type* corner;  // may lie outside
  uint32_t y, x;                                 // of the corner, below 0 wrapped around
  uint32_t height, width;

  __device__ WindowReader(const QuantizeArgs& q, const Segment& s, bool exists)
      : height(q.window.height), width(q.window.width) {
    const Window& w = q.window;
    const auto within = static_cast<uint32_t>(exists ? s.within : 0);
    const uint32_t image = within / w.positions, position = within - image * w.positions;
    const uint32_t out_y = position / w.positions_x, out_x = position - out_y * w.positions_x;
    const int row = static_cast<int>(out_y) * w.stride_y - w.pad_y;
    const int column = static_cast<int>(out_x) * w.stride_x - w.pad_x;
    corner = static_cast<const typename Element<kDType>::Type*>(q.source.data) +
             (image * w.image_stride + s.batch * w.group_stride + row * w.y_stride +
              column * w.x_stride);
    y = exists ? row : w.height;  // or all outside
    x = column;
  }
  /// Eight columns of the table, of which the first `count` exist; the others are 0.
  __device__ __forceinline__ void read(const WindowColumn* columns, int count,
                                       float (&out)[kWindowColumns]) const {
    // All addresses before the first load: no branch comes between the loads.
    int offset[kWindowColumns];
    bool inside[kWindowColumns];
#pragma unroll
    for (int j = 0; j < kWindowColumns; j += 2) {
      const uint4 raw = reinterpret_cast<const uint4*>(columns)[j / 2];  // two columns
      const uint32_t offsets[2] = {raw.x, raw.z}, steps[2] = {raw.y, raw.w};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool in_y = y + (steps[i] & 0xffffu) < height, in_x = x + (steps[i] >> 16) < width;
        inside[j + i] = in_y & in_x & (j + i < count);
        offset[j + i] = static_cast<int>(offsets[i]);
      }
    }
#pragma unroll
    for (int j = 0; j < kWindowColumns; ++j) {
      out[j] = inside[j] ? load(kDType, corner, offset[j]) : 0.0f;
    }
  }
};

// A block's values, kept: of a column kValuePitch apart from the next.
struct KeptValues {
  float* values;

  __device__ __forceinline__ float& at(int column, int row) const {
    return values[column * kValuePitch + row];
  }
};

// Keeps all values of a row, a warp reading neighbouring channels; the largest magnitude's bits.
template <DType kDType>
__device__ __forceinline__ uint32_t keep_by_channel(const QuantizeArgs& q,
                                                    const WindowColumn* columns, const Segment& s,
                                                    int row, const KeptValues& kept) {
  constexpr int kTogether = 8;
  const WindowReader<kDType> reader(q, s, true);
  const int taps = q.window.taps, channels = static_cast<int>(s.count) / taps;
  uint32_t magnitude = 0;
  for (int channel = threadIdx.x % 32; channel < channels; channel += 32) {
    const auto* from = reader.corner + channel * q.window.channel_stride;
    for (int first = 0; first < taps; first += kTogether) {
      float x[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const WindowColumn tap = columns[min(first + j, taps - 1)];
        const bool inside = reader.y + tap.dy < reader.height && reader.x + tap.dx < reader.width;
        x[j] = inside ? load(kDType, from, tap.offset) : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (first + j >= taps) break;
        magnitude = max(magnitude, Range::bits_of(x[j]));
        kept.at(channel * taps + first + j, row) = x[j];
      }
    }
  }
  return __reduce_max_sync(~0u, magnitude);
}

// kPlain: staged in groups of eight, and as many cycles as the code.
template <DType kDType, bool kPlain, Gather kGather>
__global__ void __launch_bounds__(kWindowThreads<kGather>, 1024 / kWindowThreads<kGather>)
    quantize_windows_kernel(const __grid_constant__ QuantizeArgs q, uint32_t tiles) {
  let_next_kernel_start();
  extern __shared__ __align__(16) WindowColumn columns[];  // of the chunk, in groups of eight
  constexpr int kBlock = kWindowThreads<kGather>;
  constexpr int kWarps = kBlock / kWindowRows, kStep = kWarps * kWindowColumns;
  __shared__ uint32_t magnitudes[kWarps][kWindowRows];
  clear(q, blockIdx.x, gridDim.x);
  const int lane = threadIdx.x % kWindowRows, warp = threadIdx.x / kWindowRows;
  const uint32_t block = blockIdx.x, chunk = block % static_cast<uint32_t>(q.chunks);
  const uint32_t tile = block / static_cast<uint32_t>(q.chunks);
  const uint32_t batch = tile / tiles, first_row = (tile - batch * tiles) * kWindowRows;
  const auto segment = [&](uint32_t within) {
    const int64_t row = int64_t{batch} * q.source.rows + within;
    return Segment(q, static_cast<uint32_t>(row * q.chunks + chunk));
  };
  const bool exists = first_row + lane < q.source.rows;
  const Segment s = segment(exists ? first_row + lane : 0);
  const int count = static_cast<int>(s.count);
  for (int i = threadIdx.x; i < count; i += kBlock) {
    columns[i] = window_column(q.window, static_cast<uint32_t>(s.first) + i);
  }
  __syncthreads();

  const WindowReader<kDType> reader(q, s, exists);
  const KeptValues kept{reinterpret_cast<float*>(columns + q.chunk + kWindowColumns)};
  float x[kWindowColumns];
  Range range;
  if constexpr (kGather == Gather::by_channel) {
    for (int row = warp; row < kWindowRows && first_row + row < q.source.rows; row += kWarps) {
      const uint32_t most =
          keep_by_channel<kDType>(q, columns, segment(first_row + row), row, kept);
      if (lane == 0) magnitudes[0][row] = most;
    }
    __syncthreads();
    range.magnitude = exists ? magnitudes[0][lane] : 0;
  } else {
    for (int i = warp * kWindowColumns; i < count; i += kStep) {
      reader.read(columns + i, count - i, x);
#pragma unroll
      for (int j = 0; j < kWindowColumns; ++j) {
        range.magnitude = max(range.magnitude, Range::bits_of(x[j]));
        if (kGather != Gather::again) kept.at(i + j, lane) = x[j];
      }
    }
    magnitudes[warp][lane] = range.magnitude;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i) range.magnitude = max(range.magnitude, magnitudes[i][lane]);
  }
  // A kernel before it need not be over for anything here, but is when this one is.
  if (threadIdx.x == 0) wait_for_previous_kernel();
  if (!exists) return;

  const Affine affine = range.bipolar_affine(q.scheme, reciprocal_qmax(q.scheme));
  const FastCodes codes(q, affine);
  const bool staged = q.output == Output::staged_cycles;
  const int padded =
      staged ? static_cast<int>(q.layout.stages_per_chunk * q.layout.positions) : count;
  for (int i = warp * kWindowColumns; i < padded; i += kStep) {
    if (kGather != Gather::again) {
#pragma unroll
      for (int j = 0; j < kWindowColumns; ++j) x[j] = i + j < count ? kept.at(i + j, lane) : 0.0f;
    } else if (i < count) {
      reader.read(columns + i, count - i, x);
    } else {  // behind the chunk's end: zeros of the last stage
#pragma unroll
      for (float& value : x) value = 0.0f;
    }
    const int4 a = codes(make_float4(x[0], x[1], x[2], x[3]));
    const int4 b = codes(make_float4(x[4], x[5], x[6], x[7]));
    int low[4] = {a.x, a.y, a.z, a.w}, high[4] = {b.x, b.y, b.z, b.w};
    if constexpr (kPlain) {
      const uint2 first = pack(low), second = pack(high);
      *reinterpret_cast<uint4*>(staged_at(q, s, i)) =
          make_uint4(first.x, first.y, second.x, second.y);
    } else {
      write_eight(q, s, i, low, high, padded);
    }
  }
  if (warp == 0) write_row_outputs(q, s, affine);
}

inline int64_t column_bytes(const QuantizeArgs& q) {  // groups of eight are read whole
  return (q.chunk + kWindowColumns) * static_cast<int64_t>(sizeof(WindowColumn));
}

inline int64_t most_table_bytes() {
  return std::min(kColumnBytes, most_shared_memory() - kWindowStatic);
}

// Whether the kernel above can do it.
inline bool usual_windows(const QuantizeArgs& q) {
  const Window& w = q.window;
  if (w.taps == 0 || w.height == 0) return false;
  // Offsets and steps as the table of columns holds them.
  const int64_t reach_y = int64_t{w.taps / w.kernel_x - 1} * w.dilation_y;
  const int64_t reach_x = int64_t{w.kernel_x - 1} * w.dilation_x;
  const int64_t channels = q.source.dim / w.taps;
  return !q.scheme.unipolar && q.scheme.rounding != Rounding::tensor && q.multiplier != 0 &&
         q.range_from == RangeFrom::segment && q.source.smoothing == Smoothing::none && !q.sums &&
         (q.output == Output::staged_cycles || q.output == Output::signed_codes) &&
         reach_y < (1 << 16) && reach_x < (1 << 16) && within_reach(channels, w.channel_stride) &&
         within_reach(reach_y, w.y_stride) && within_reach(reach_x, w.x_stride) &&
         column_bytes(q) <= most_table_bytes();
}

// The same of kept values.
inline int64_t value_bytes(const QuantizeArgs& q) {
  const int64_t columns = (q.chunk + kWindowColumns - 1) / kWindowColumns * kWindowColumns;
  return columns * kValuePitch * static_cast<int64_t>(sizeof(float));
}

inline Gather gather_of(const QuantizeArgs& q) {
  if (column_bytes(q) + value_bytes(q) > kValueBytes) return Gather::again;
  const Window& w = q.window;
  const bool channels_near =
      w.channel_stride < w.x_stride && q.chunks == 1 && q.source.dim / w.taps >= kLeastChannels;
  if (channels_near) return Gather::by_channel;
  return q.chunk < kLeastColumns ? Gather::again : Gather::by_position;
}

// `beside`: the kernel in front of it, which it does not need, started after all that it reads was
// there; it may start before that one is over.
inline void quantize_windows(const QuantizeArgs& q, bool beside, cudaStream_t stream) {
  const int64_t tiles = (q.source.rows + kWindowRows - 1) / kWindowRows;
  const int64_t blocks = q.source.batches * tiles * q.chunks;
  require(blocks < (int64_t{1} << 31) && q.source.total_rows() * q.chunks <= kMostSegments,
          "output positions times chunks must be at most ", kMostSegments, " on CUDA");
  if (blocks == 0) return;
  const Gather gather = gather_of(q);
  const int64_t values = gather == Gather::again ? 0 : value_bytes(q);
  const auto bytes = static_cast<int>(column_bytes(q) + values);
  const bool plain =
      q.output == Output::staged_cycles && q.layout.positions >= kWindowColumns && !q.cycles;
  const auto launch = [&](auto dtype, auto is_plain, auto how) {
    constexpr auto kKernel =
        quantize_windows_kernel<decltype(dtype)::value, decltype(is_plain)::value,
                                decltype(how)::value>;
    allow_shared_memory<kKernel>(static_cast<int>(most_table_bytes()));
    const dim3 grid(static_cast<unsigned>(blocks)), block(kWindowThreads<decltype(how)::value>);
    if (beside) {
      launch_dependent<kKernel>(grid, block, bytes, stream, q, static_cast<uint32_t>(tiles));
    } else {
      kKernel<<<grid, block, bytes, stream>>>(q, static_cast<uint32_t>(tiles));
    }
  };
  const auto with_gather = [&](auto dtype, auto is_plain) {
    switch (gather) {
      case Gather::by_channel:
        return launch(dtype, is_plain, std::integral_constant<Gather, Gather::by_channel>{});
      case Gather::by_position:
        return launch(dtype, is_plain, std::integral_constant<Gather, Gather::by_position>{});
      default:
        return launch(dtype, is_plain, std::integral_constant<Gather, Gather::again>{});
    }
  };
  with_dtype(q.source.dtype, [&](auto dtype) {
    plain ? with_gather(dtype, std::true_type{}) : with_gather(dtype, std::false_type{});
  });
}

}  // namespace scmp::cuda
