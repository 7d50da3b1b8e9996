// The sums of a warp's tile, 128 columns wide, in fragments as mma.sync and wgmma leave them, and
// how they reach memory.
#pragma once

#include "gemm/cuda/tile/epilogue.cuh"
#include "quant/affine.h"

namespace scmp::cuda {

constexpr int kWarpRows = 32;
constexpr int kColumnFragments = kTileColumns / 8;

/// Lane 4g + t holds, of fragment (mf, nf): rows 16 mf + g + 8r, columns 8 nf + 2t + c at [2r + c].
template <int kRowFragments>
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

/// Calls visit(mf, r, row) for the rows of this thread's fragments that exist.
template <int kRowFragments, typename Visit>
__device__ __forceinline__ void each_row(const GemmProblem& p, const TileAt& at,
                                         const Visit& visit) {
#pragma unroll
  for (int mf = 0; mf < kRowFragments; ++mf) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = at.row + 16 * mf + threadIdx.x % 32 / 4 + 8 * r;
      if (row < p.n) visit(mf, r, row);
    }
  }
}

/// The tile's sums to slot `slot` of p.partial.
template <int kRowFragments>
__device__ inline void write_partial(const GemmProblem& p, const TileAt& at, int64_t slot,
                                     const Fragments<kRowFragments>& f) {
  const bool paired = p.m % 2 == 0;
  const int64_t column = at.column + 2 * (threadIdx.x % 4), columns = p.m - column;
  each_row<kRowFragments>(p, at, [&](int mf, int r, int64_t row) {
    int32_t* to = p.partial + ((slot * p.batches + at.batch) * p.n + row) * p.m + column;
#pragma unroll
    for (int nf = 0; nf < kColumnFragments; ++nf) {
      const int* sum = f.sum[mf][nf] + 2 * r;
      store_pair(to + 8 * nf, make_int2(sum[0], sum[1]), columns - 8 * nf, paired);
    }
  });
}

/// The tile's outputs of any kind, one at a time.
template <int kRowFragments>
__device__ inline void write_each(const GemmProblem& p, const TileAt& at, int64_t chunk,
                                  const Fragments<kRowFragments>& f) {
  const int64_t column = at.column + 2 * (threadIdx.x % 4);
  each_row<kRowFragments>(p, at, [&](int mf, int r, int64_t row) {
#pragma unroll
    for (int nf = 0; nf < kColumnFragments; ++nf) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (column + 8 * nf + c < p.m) {
          write_output(p, at.batch, row, column + 8 * nf + c, chunk, f.sum[mf][nf][2 * r + c]);
        }
      }
    }
  });
}

/// The tile's outputs of the row and chunk kinds. Sums of earlier chunks wait in the output or,
/// with kKept, at kept[i * kept_stride]. kFull: all columns exist, and pairs are aligned.
template <bool kKept, bool kFull, int kRowFragments>
__device__ inline void write_scaled(const GemmProblem& p, const TileAt& at, int64_t chunk,
                                    const Fragments<kRowFragments>& f, float2* kept,
                                    int kept_stride) {
  const bool paired = kFull || p.m % 2 == 0;
  const int64_t column = at.column + 2 * (threadIdx.x % 4);
  const int64_t columns = kFull ? kTileColumns : p.m - column;
  const Dequantizer& q = p.dequantizer;
  const bool adds = q.kind == Epilogue::chunk, last = chunk + 1 == p.chunks;
  const float* b_scale = q.b_scale + (at.batch * p.chunks + chunk) * p.m + column;
  float a_scale[kRowFragments][2];
  each_row<kRowFragments>(p, at, [&](int mf, int r, int64_t row) {
    a_scale[mf][r] = q.a_scale[(at.batch * p.n + row) * p.chunks + chunk];
  });
  constexpr int kGroup = 4;  // column fragments at a time: loads before the first store
#pragma unroll
  for (int first = 0; first < kColumnFragments; first += kGroup) {
    float2 scale[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) {
      const int nf = 8 * (first + i);
      scale[i] = load_pair<float2>(b_scale + nf, columns - nf, paired);
    }
    if (p.damaged) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int nf = 8 * (first + i);
        const uint8_t* flags = p.damaged + at.batch * p.m + column + nf;
        if (columns > nf && flags[0]) scale[i].x = quiet_nan();
        if (columns > nf + 1 && flags[1]) scale[i].y = quiet_nan();
      }
    }
    each_row<kRowFragments>(p, at, [&](int mf, int r, int64_t row) {
      float* y = p.out + (at.batch * p.n + row) * p.m + column;
      float2* waiting = kept + ((2 * mf + r) * kColumnFragments + first) * kept_stride;
      float2 before[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int nf = 8 * (first + i);
        before[i] = chunk == 0 ? make_float2(0.0f, 0.0f)
                    : kKept    ? waiting[i * kept_stride]
                               : load_pair<float2>(y + nf, columns - nf, paired);
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int nf = 8 * (first + i);
        const int* sum = f.sum[mf][first + i] + 2 * r;
        float2 value = {scaled_value(static_cast<float>(sum[0]), q.c, a_scale[mf][r], scale[i].x),
                        scaled_value(static_cast<float>(sum[1]), q.c, a_scale[mf][r], scale[i].y)};
        if (adds) value = {f32_add(before[i].x, value.x), f32_add(before[i].y, value.y)};
        if (kKept && !last) {
          waiting[i * kept_stride] = value;
        } else {
          store_pair(y + nf, value, columns - nf, paired);
        }
      }
    });
  }
}

/// The tile's sums of one chunk to wherever the problem wants them.
template <bool kKept = false, int kRowFragments>
__device__ inline void write_tile(const GemmProblem& p, const TileAt& at, int64_t chunk,
                                  int64_t slot, const Fragments<kRowFragments>& f,
                                  float2* kept = nullptr, int kept_stride = 0) {
  const Epilogue kind = p.dequantizer.kind;
  if (p.partial) {
    write_partial(p, at, slot, f);
  } else if (kind == Epilogue::row || kind == Epilogue::chunk) {
    if (p.m % 2 == 0 && p.m - at.column >= kTileColumns) {
      write_scaled<kKept, true>(p, at, chunk, f, kept, kept_stride);
    } else {
      write_scaled<kKept, false>(p, at, chunk, f, kept, kept_stride);
    }
  } else {
    write_each(p, at, chunk, f);
  }
}

}  // namespace scmp::cuda
