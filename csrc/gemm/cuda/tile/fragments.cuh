// The sums of a warp's 32 x 128 tile in mma.sync fragments, and how they reach memory.
#pragma once

#include "gemm/cuda/tile/epilogue.cuh"

namespace scmp::cuda {

constexpr int kTileColumns = 128;
constexpr int kWarpRows = 32;
constexpr int kRowFragments = kWarpRows / 16, kColumnFragments = kTileColumns / 8;

/// Lane 4g + t holds, of fragment (mf, nf): rows 16 mf + g + 8r, columns 8 nf + 2t + c at [2r + c].
struct Fragments {
  int sum[kRowFragments][kColumnFragments][4];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kRowFragments; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnFragments; ++j) {
#pragma unroll
        for (int c = 0; c < 4; ++c) sum[i][j][c] = 0;
      }
    }
  }
};

/// Two neighbours of an array, the second and both only where they exist.
template <typename Two, typename One>
__device__ __forceinline__ Two load_pair(const One* from, int64_t left, bool paired) {
  if (paired && left > 0) return *reinterpret_cast<const Two*>(from);
  Two two;
  two.x = left > 0 ? from[0] : One{0};
  two.y = left > 1 ? from[1] : One{0};
  return two;
}
template <typename Two, typename One>
__device__ __forceinline__ void store_pair(One* to, Two value, int64_t left, bool paired) {
  if (paired && left > 0) {
    *reinterpret_cast<Two*>(to) = value;
  } else {
    if (left > 0) to[0] = value.x;
    if (left > 1) to[1] = value.y;
  }
}

/// Where a warp's tile lies.
struct TileAt {
  int64_t batch, row, column;  // its first row and column
};

/// The tile's sums of one chunk to p.partial, where it is set, or to outputs. Sums of earlier
/// chunks wait in the output or, where `kept` is not null, at kept[slot * kept_stride].
__device__ inline void write_tile(const GemmProblem& p, const TileAt& at, int64_t chunk,
                                  int64_t slot, const Fragments& f, float2* kept = nullptr,
                                  int kept_stride = 0) {
  const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  const bool paired = p.m % 2 == 0;
  const int64_t column = at.column + 2 * t, columns = p.m - column;
  const Dequantizer& q = p.dequantizer;
  const bool scaled = q.kind == Epilogue::row || q.kind == Epilogue::chunk;
  const bool last = chunk + 1 == p.chunks;
  const float* b_scale = q.b_scale + (at.batch * p.chunks + chunk) * p.m + column;
  constexpr int kGroup = 4;  // column fragments at a time: loads before the first store
#pragma unroll
  for (int first = 0; first < kColumnFragments; first += kGroup) {
    float2 scale[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int nf = 8 * (first + i);
      if (scaled && !p.partial) scale[i] = load_pair<float2>(b_scale + nf, columns - nf, paired);
    }
#pragma unroll
    for (int mf = 0; mf < kRowFragments; ++mf) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t row = at.row + 16 * mf + g + 8 * r;
        if (row >= p.n) continue;
        const int64_t a_row = at.batch * p.n + row;
        if (p.partial) {
          int32_t* to = p.partial + (slot * p.batches * p.n + a_row) * p.m + column;
#pragma unroll
          for (int i = 0; i < kGroup; ++i) {
            const int nf = 8 * (first + i);
            const int* sum = f.sum[mf][first + i] + 2 * r;
            store_pair(to + nf, make_int2(sum[0], sum[1]), columns - nf, paired);
          }
          continue;
        }
        if (!scaled) {
#pragma unroll
          for (int i = 0; i < kGroup; ++i) {
            const int nf = 8 * (first + i);
            const int* sum = f.sum[mf][first + i] + 2 * r;
            if (columns > nf) write_output(p, at.batch, row, column + nf, chunk, sum[0]);
            if (columns > nf + 1) write_output(p, at.batch, row, column + nf + 1, chunk, sum[1]);
          }
          continue;
        }
        float* y = p.out + a_row * p.m + column;
        const float a_scale = q.a_scale[a_row * p.chunks + chunk];
        float2* waiting = kept + ((2 * mf + r) * kColumnFragments + first) * kept_stride;
        float2 before[kGroup];
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          const int nf = 8 * (first + i);
          before[i] = chunk == 0 ? make_float2(0.0f, 0.0f)
                      : kept     ? waiting[i * kept_stride]
                                 : load_pair<float2>(y + nf, columns - nf, paired);
        }
#pragma unroll
        for (int i = 0; i < kGroup; ++i) {
          const int nf = 8 * (first + i);
          const int* sum = f.sum[mf][first + i] + 2 * r;
          float2 value = {scaled_value(static_cast<float>(sum[0]), q.c, a_scale, scale[i].x),
                          scaled_value(static_cast<float>(sum[1]), q.c, a_scale, scale[i].y)};
          if (q.kind == Epilogue::chunk) {
            value = {f32_add(before[i].x, value.x), f32_add(before[i].y, value.y)};
          }
          if (kept && !last) {
            waiting[i * kept_stride] = value;
          } else {
            store_pair(y + nf, value, columns - nf, paired);
          }
        }
      }
    }
  }
}

}  // namespace scmp::cuda
