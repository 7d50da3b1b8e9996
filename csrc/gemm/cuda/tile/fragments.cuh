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

/// Where a row of the output, or of partial sums of it, has a pair of neighbouring columns: the
/// next column is `step` further on. kFull: all columns exist, and pairs of them are aligned.
template <bool kFull, bool kTransposed, typename T>
struct OutputRow {
  T* first;
  int64_t step, left;  // left: columns from the first on
  bool paired;         // two at once

  __device__ __forceinline__ OutputRow(const GemmProblem& p, T* base, int64_t batch, int64_t row,
                                       int64_t column)
      : left(kFull ? kTileColumns : p.m - column), paired(!kTransposed && (kFull || p.m % 2 == 0)) {
    if constexpr (!kTransposed) {
      step = 1;
      first = base + (batch * p.n + row) * p.m + column;
      return;
    }
    step = p.n;
    if (p.image_rows > 0) {  // of the only batch entry
      step = p.image_rows;
      batch = static_cast<uint32_t>(row) / static_cast<uint32_t>(p.image_rows);
      row -= batch * p.image_rows;
    }
    first = base + (batch * p.m + column) * step + row;
  }
  __device__ bool has(int column) const { return kFull || column < left; }
  template <typename Two>
  __device__ __forceinline__ Two load(int column) const {
    const T* from = first + column * step;
    if (paired && has(column)) return *reinterpret_cast<const Two*>(from);
    Two two;
    two.x = has(column) ? from[0] : T{0};
    two.y = has(column + 1) ? from[step] : T{0};
    return two;
  }
  template <typename Two>
  __device__ __forceinline__ void store(int column, Two value) const {
    T* to = first + column * step;
    if (paired && has(column)) {
      *reinterpret_cast<Two*>(to) = value;
    } else {
      if (has(column)) to[0] = value.x;
      if (has(column + 1)) to[step] = value.y;
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

/// Where a warp's tile lies.
struct TileAt {
  int64_t batch, row, column;  // its first row and column
};

/// Calls visit(mf, r, row) for the rows of this thread's fragments that exist: rows of the output,
/// where a's are sorted too.
template <int kRowFragments, bool kSorted = false, typename Visit>
__device__ __forceinline__ void each_row(const GemmProblem& p, const TileAt& at,
                                         const Visit& visit) {
#pragma unroll
  for (int mf = 0; mf < kRowFragments; ++mf) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = at.row + 16 * mf + threadIdx.x % 32 / 4 + 8 * r;
      if (row < p.n) visit(mf, r, kSorted ? int64_t{p.sorted.order[at.batch * p.n + row]} : row);
    }
  }
}

/// The tile's sums to slot `slot` of p.partial.
template <bool kSorted, bool kTransposed, int kRowFragments>
__device__ inline void write_partial(const GemmProblem& p, const TileAt& at, int64_t slot,
                                     const Fragments<kRowFragments>& f) {
  const int64_t column = at.column + 2 * (threadIdx.x % 4);
  each_row<kRowFragments, kSorted>(p, at, [&](int mf, int r, int64_t row) {
    const OutputRow<false, kTransposed, int32_t> to(p, p.partial + slot * p.batches * p.n * p.m,
                                                    at.batch, row, column);
#pragma unroll
    for (int nf = 0; nf < kColumnFragments; ++nf) {
      const int* sum = f.sum[mf][nf] + 2 * r;
      to.store(8 * nf, make_int2(sum[0], sum[1]));
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

/// The b scales of a thread's columns; NaN where codes were damaged. kFull: all columns exist, and
/// pairs of them are aligned.
template <bool kFull>
struct BScales {
  const float* scales;
  const uint8_t* damaged;
  int64_t columns;
  bool paired;

  __device__ BScales(const GemmProblem& p, const TileAt& at, int64_t chunk)
      : BScales(p, at, chunk, p.dequantizer.b_scale) {}
  /// The same of other numbers by column, (batches, chunks, m).
  __device__ BScales(const GemmProblem& p, const TileAt& at, int64_t chunk, const float* numbers) {
    const int64_t column = at.column + 2 * (threadIdx.x % 4);
    scales = numbers + (at.batch * p.chunks + chunk) * p.m + column;
    damaged = p.damaged ? p.damaged + at.batch * p.m + column : nullptr;
    columns = kFull ? kTileColumns : p.m - column;
    paired = kFull || p.m % 2 == 0;
  }
  /// Of fragments first .. first + kCount - 1: all reads before the first use.
  template <int kCount>
  __device__ __forceinline__ void read(int first, float2 (&scale)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = 8 * (first + i);
      scale[i] = load_pair<float2>(scales + at, columns - at, paired);
    }
    if (!damaged) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = 8 * (first + i);
      if (columns > at && damaged[at]) scale[i].x = quiet_nan();
      if (columns > at + 1 && damaged[at + 1]) scale[i].y = quiet_nan();
    }
  }
};

/// The tile's outputs of the row, head and chunk kinds (sorted: of rows with a c of their own);
/// chunks add to what the output holds.
template <bool kFull, bool kSorted, bool kTransposed, int kRowFragments>
__device__ inline void write_scaled(const GemmProblem& p, const TileAt& at, int64_t chunk,
                                    const Fragments<kRowFragments>& f) {
  const BScales<kFull> b(p, at, chunk);
  const Dequantizer& q = p.dequantizer;
  const bool adds = q.kind == (kSorted ? Epilogue::chunk_own_c : Epilogue::chunk);
  const bool head = !kSorted && q.kind == Epilogue::head;
  const float late = head ? q.c : 1.0f;  // c comes in at another place; a factor 1 changes no bit
  const int64_t column = at.column + 2 * (threadIdx.x % 4);
  constexpr int kGroup = 4;  // column fragments at a time
#pragma unroll
  for (int first = 0; first < kColumnFragments; first += kGroup) {
    float2 scale[kGroup];
    b.read(first, scale);
    each_row<kRowFragments, kSorted>(p, at, [&](int mf, int r, int64_t row) {
      const int64_t a_row = at.batch * p.n + row;
      const float a_scale = q.a_scale[a_row * p.chunks + chunk];
      const float c = kSorted ? q.row_c[a_row * p.chunks + chunk] : head ? 1.0f : q.c;
      const bool skipped = kSorted && c == 0.0f;  // adds nothing, whatever the scales
      const OutputRow<kFull, kTransposed, float> y(p, p.out, at.batch, row, column);
      float2 before[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        before[i] =
            adds && chunk > 0 ? y.template load<float2>(8 * (first + i)) : make_float2(0.0f, 0.0f);
      }
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int* sum = f.sum[mf][first + i] + 2 * r;
        float2 value = {f32_mul(f32_mul(static_cast<float>(sum[0]), c),
                                f32_mul(late, f32_mul(a_scale, scale[i].x))),
                        f32_mul(f32_mul(static_cast<float>(sum[1]), c),
                                f32_mul(late, f32_mul(a_scale, scale[i].y)))};
        if (adds) value = {f32_add(before[i].x, value.x), f32_add(before[i].y, value.y)};
        if (skipped) value = before[i];
        y.store(8 * (first + i), value);
      }
    });
  }
}

/// The tile's outputs of the kind unipolar_tensor.
template <bool kFull, int kRowFragments>
__device__ inline void write_unipolar_tensor(const GemmProblem& p, const TileAt& at,
                                             const Fragments<kRowFragments>& f) {
  const Dequantizer& q = p.dequantizer;
  const BScales<kFull> sums(p, at, 0, q.b_sum);  // NaN where damaged, and so is what follows
  const double a_zero = p.a_tensor[1], b_zero = p.b_tensor[1];
  const float product = static_cast<float>(static_cast<double>(p.d) * a_zero * b_zero);
  const auto scale = static_cast<float>(p.a_tensor[0] * p.b_tensor[0]);
  const int64_t column = at.column + 2 * (threadIdx.x % 4);
  constexpr int kGroup = 4;  // column fragments at a time
#pragma unroll
  for (int first = 0; first < kColumnFragments; first += kGroup) {
    float2 b_sum[kGroup];
    sums.read(first, b_sum);
    each_row<kRowFragments>(p, at, [&](int mf, int r, int64_t row) {
      const int64_t a_row = at.batch * p.n + row;
      const float a_sum = q.a_sum[a_row];
      const OutputRow<kFull, false, float> y(p, p.out, at.batch, row, column);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        const int* sum = f.sum[mf][first + i] + 2 * r;
        const auto value = [&](int s, float b) {
          return unipolar_value(static_cast<float>(s), q.c, static_cast<float>(a_zero),
                                static_cast<float>(b_zero), a_sum, b, product, scale);
        };
        y.store(8 * (first + i), make_float2(value(sum[0], b_sum[i].x), value(sum[1], b_sum[i].y)));
      }
    });
  }
}

/// Sums below this convert to float by an addition, which is exact and four times as fast.
constexpr int64_t kSmallSum = int64_t{1} << 22;
__device__ __forceinline__ float small_float(int sum) {
  return f32_sub(__int_as_float(0x4b400000 + sum), 0x1.8p23f);
}

/// A thread's float sums over the chunks so far, in shared memory: pair i at [i * stride].
template <int kRowFragments>
struct KeptSums {
  float2* sums;
  int stride;

  __device__ float2& at(int mf, int r, int nf) const {
    return sums[((2 * mf + r) * kColumnFragments + nf) * stride];
  }
  __device__ void clear() const {
#pragma unroll
    for (int i = 0; i < 2 * kRowFragments * kColumnFragments; ++i) {
      sums[i * stride] = make_float2(0.0f, 0.0f);
    }
  }
  /// Adds a chunk's sums, each below kSmallSum.
  template <bool kFull>
  __device__ void add(const GemmProblem& p, const TileAt& tile, int64_t chunk,
                      const Fragments<kRowFragments>& f) const {
    const BScales<kFull> b(p, tile, chunk);
    const float c = p.dequantizer.c;
    float a_scale[kRowFragments][2] = {};
    each_row<kRowFragments>(p, tile, [&](int mf, int r, int64_t row) {
      a_scale[mf][r] = p.dequantizer.a_scale[(tile.batch * p.n + row) * p.chunks + chunk];
    });
    constexpr int kGroup = kRowFragments == 1 ? 8 : 4;
#pragma unroll
    for (int first = 0; first < kColumnFragments; first += kGroup) {
      float2 scale[kGroup];
      b.read(first, scale);
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
#pragma unroll
        for (int mf = 0; mf < kRowFragments; ++mf) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int* sum = f.sum[mf][first + i] + 2 * r;
            float2& kept = at(mf, r, first + i);
            const float2 before = kept;
            kept = {
                f32_add(before.x, scaled_value(small_float(sum[0]), c, a_scale[mf][r], scale[i].x)),
                f32_add(before.y,
                        scaled_value(small_float(sum[1]), c, a_scale[mf][r], scale[i].y))};
          }
        }
      }
    }
  }
  template <bool kTransposed>
  __device__ void write(const GemmProblem& p, const TileAt& tile) const {
    const int64_t column = tile.column + 2 * (threadIdx.x % 4);
    each_row<kRowFragments>(p, tile, [&](int mf, int r, int64_t row) {
      const OutputRow<false, kTransposed, float> y(p, p.out, tile.batch, row, column);
#pragma unroll
      for (int nf = 0; nf < kColumnFragments; ++nf) y.store(8 * nf, at(mf, r, nf));
    });
  }
};

/// Whether all columns of the tile exist and pairs are aligned.
__device__ __forceinline__ bool full_tile(const GemmProblem& p, const TileAt& at) {
  return p.m % 2 == 0 && p.m - at.column >= kTileColumns;
}

/// The tile's sums of one chunk to p.partial, where it is set, or to outputs. Fast for the
/// bipolar kinds, or with kUnipolar for unipolar_tensor; the others one at a time.
template <bool kUnipolar, bool kTransposed, int kRowFragments>
__device__ inline void write_tile(const GemmProblem& p, const TileAt& at, int64_t chunk,
                                  int64_t slot, const Fragments<kRowFragments>& f) {
  const Epilogue kind = p.dequantizer.kind;
  if (p.partial) {
    write_partial<false, kTransposed>(p, at, slot, f);
  } else if (kUnipolar && kind == Epilogue::unipolar_tensor) {
    if (full_tile(p, at)) {
      write_unipolar_tensor<true>(p, at, f);
    } else {
      write_unipolar_tensor<false>(p, at, f);
    }
  } else if (kUnipolar ||
             (kind != Epilogue::row && kind != Epilogue::head && kind != Epilogue::chunk)) {
    write_each(p, at, chunk, f);
  } else if (full_tile(p, at)) {
    write_scaled<true, false, kTransposed>(p, at, chunk, f);
  } else {
    write_scaled<false, false, kTransposed>(p, at, chunk, f);
  }
}

/// What a warp needs to know of a tile's sorted columns, four in a lane: column lane + 32 j at [j].
struct SortedColumns {
  int column[4];  // of the output, -1 where there is none
  float c[4], scale[4];

  __device__ __forceinline__ SortedColumns(const GemmProblem& p, const TileAt& at, int64_t chunk) {
    const Dequantizer& q = p.dequantizer;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t place = at.column + threadIdx.x % 32 + 32 * j;
      column[j] = place < p.m ? p.sorted.order[at.batch * p.m + place] : -1;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int64_t known = max(column[j], 0);
      c[j] = q.row_c[(at.batch * p.m + known) * p.chunks + chunk];
      scale[j] = q.b_scale[(at.batch * p.chunks + chunk) * p.m + known];
    }
  }
};

/// The same of a transposed problem whose columns are sorted by length.
template <int kRowFragments>
__device__ inline void write_sorted_columns(const GemmProblem& p, const TileAt& at, int64_t chunk,
                                            int64_t slot, const Fragments<kRowFragments>& f) {
  static_assert(kRowFragments == 1);
  const bool adds = p.dequantizer.kind == Epilogue::chunk_own_c;
  const SortedColumns columns(p, at, chunk);
  float a_scale[2] = {};
  bool exists[2] = {};
  each_row<1>(p, at, [&](int, int r, int64_t row) {
    a_scale[r] = p.dequantizer.a_scale[(at.batch * p.n + row) * p.chunks + chunk];
    exists[r] = true;
  });
  // Of the thread's first row in the first column.
  const int64_t first = at.batch * p.m * p.n + at.row + threadIdx.x % 32 / 4;
  int32_t* sums = p.partial ? p.partial + slot * p.batches * p.n * p.m + first : nullptr;
#pragma unroll
  for (int nf = 0; nf < kColumnFragments; ++nf) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int lane = 8 * (nf % 4) + 2 * (threadIdx.x % 4) + i, j = nf / 4;
      const int column = __shfl_sync(~0u, columns.column[j], lane);
      const float c = __shfl_sync(~0u, columns.c[j], lane);
      const float scale = __shfl_sync(~0u, columns.scale[j], lane);
      if (column < 0) continue;
      const int64_t from = column * p.n;
      float* y = p.out + first + from;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int sum = f.sum[0][nf][2 * r + i];
        if (!exists[r]) continue;
        if (sums) {
          sums[from + 8 * r] = sum;
          continue;
        }
        const float before = adds && chunk > 0 ? y[8 * r] : 0.0f;
        const float value = scaled_value(static_cast<float>(sum), c, a_scale[r], scale);
        // A length of 0 adds nothing, whatever the scales.
        y[8 * r] = c == 0.0f ? before : adds ? f32_add(before, value) : value;
      }
    }
  }
}

/// The same where rows, or a transposed problem's columns, are sorted by length.
template <bool kTransposed, int kRowFragments>
__device__ inline void write_sorted_tile(const GemmProblem& p, const TileAt& at, int64_t chunk,
                                         int64_t slot, const Fragments<kRowFragments>& f) {
  if constexpr (kTransposed) {
    write_sorted_columns(p, at, chunk, slot, f);
  } else if (p.partial) {
    write_partial<true, false>(p, at, slot, f);
  } else if (full_tile(p, at)) {
    write_scaled<true, true, false>(p, at, chunk, f);
  } else {
    write_scaled<false, true, false>(p, at, chunk, f);
  }
}

/// The tile's sums of one chunk to the sums kept in shared memory, and from there to outputs after
/// the last one.
template <bool kTransposed, int kRowFragments>
__device__ inline void keep_tile(const GemmProblem& p, const TileAt& at, int64_t chunk,
                                 const Fragments<kRowFragments>& f,
                                 const KeptSums<kRowFragments>& kept) {
  if (chunk == 0) kept.clear();
  if (full_tile(p, at)) {
    kept.template add<true>(p, at, chunk, f);
  } else {
    kept.template add<false>(p, at, chunk, f);
  }
  if (chunk + 1 == p.chunks) kept.template write<kTransposed>(p, at);
}

}  // namespace scmp::cuda
