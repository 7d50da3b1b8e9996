#include "gemm/cuda/finish.h"

#include <algorithm>
#include <utility>

#include "common/dependent_launch.cuh"
#include "gemm/cuda/tile/epilogue.cuh"
#include "quant/affine.h"

namespace scmp::cuda {
namespace {

constexpr int kRows = 8;      // of a per block, one each warp: they read the same scales of b
constexpr int kTogether = 8;  // slots whose sums are read before the first is used
constexpr int64_t kManyOutputs = 1 << 15;  // from here on a thread has four of them

// kCount neighbours of an array; four are 16-byte aligned.
template <int kCount, typename T>
__device__ __forceinline__ void load(const T* from, T (&to)[kCount]) {
  static_assert(kCount == 1 || (kCount == 4 && sizeof(T) == 4));
  if constexpr (kCount == 4) {
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  } else {
    to[0] = from[0];
  }
}

// Outputs of the row of a, from `column` on, of the chunk kind with one slot per chunk: many
// dependent additions, so everything that some of them need is read ahead.
template <int kColumns>
__device__ void add_chunks(const GemmProblem& p, int64_t a_row, int64_t batch, int64_t column,
                           float (&y)[kColumns]) {
  const Dequantizer& q = p.dequantizer;
  const int64_t count = p.batches * p.n * p.m;
  const int32_t* from = p.partial + a_row * p.m + column;
  const float* a_scale = q.a_scale + a_row * p.chunks;
  const float* b_scale = q.b_scale + batch * p.chunks * p.m + column;
  const int chunks = static_cast<int>(p.chunks);
#pragma unroll 1
  for (int first = 0; first < chunks; first += kTogether) {
    alignas(16) int32_t sum[kTogether][kColumns];
    alignas(16) float b[kTogether][kColumns];
    float a[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      load(from, sum[j]);
      load(b_scale, b[j]);
      a[j] = *a_scale;
      const bool more = first + j + 1 < chunks;
      from += more ? count : 0;
      a_scale += more;
      b_scale += more ? p.m : 0;
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (first + j >= chunks) break;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        y[i] = f32_add(y[i], scaled_value(static_cast<float>(sum[j][i]), q.c, a[j], b[j][i]));
      }
    }
  }
  if (!p.damaged) return;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    if (p.damaged[batch * p.m + column + i]) y[i] = quiet_nan();
  }
}

// The same of any kind.
template <int kColumns>
__device__ void add_parts(const GemmProblem& p, int64_t a_row, int64_t batch, int64_t column,
                          float (&y)[kColumns]) {
  const int64_t count = p.batches * p.n * p.m, parts = p.slots / p.chunks;
  const int32_t* from = p.partial + a_row * p.m + column;
  for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
    long long sum[kColumns] = {};
#pragma unroll kTogether
    for (int64_t part = 0; part < parts; ++part) {
      alignas(16) int32_t some[kColumns];
      load(from + (chunk * parts + part) * count, some);
#pragma unroll
      for (int i = 0; i < kColumns; ++i) sum[i] += some[i];
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      y[i] = output_value(p, batch, a_row - batch * p.n, column + i, chunk, sum[i], y[i]);
    }
  }
}

// grid: (columns, rows of a); kColumns of the output are a thread's.
template <int kColumns>
__global__ void __launch_bounds__(32 * kRows) finish_kernel(const __grid_constant__ GemmProblem p) {
  wait_for_previous_kernel();
  const int64_t column = (int64_t{blockIdx.x} * 32 + threadIdx.x % 32) * kColumns;
  if (column >= p.m) return;
  const int64_t rows = p.batches * p.n;
  for (int64_t a_row = int64_t{blockIdx.y} * kRows + threadIdx.x / 32; a_row < rows;
       a_row += int64_t{gridDim.y} * kRows) {
    const int64_t batch = p.batches == 1 ? 0 : a_row / p.n;
    alignas(16) float y[kColumns] = {};
    if (p.dequantizer.kind == Epilogue::chunk && p.slots == p.chunks) {
      add_chunks(p, a_row, batch, column, y);
    } else {
      add_parts(p, a_row, batch, column, y);
    }
    float* to = p.out + a_row * p.m + column;
    if constexpr (kColumns == 4) {
      *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(y);
    } else {
      to[0] = y[0];
    }
  }
}

// A transposed problem, which has no chunks here, in the order of its outputs.
GemmProblem in_output_order(GemmProblem p) {
  if (!p.transposed) return p;
  std::swap(p.n, p.m);
  std::swap(p.dequantizer.n, p.dequantizer.m);
  std::swap(p.dequantizer.a_scale, p.dequantizer.b_scale);
  p.transposed = false;
  return p;
}

}  // namespace

void finish(const GemmProblem& problem, cudaStream_t stream) {
  const GemmProblem p = in_output_order(problem);
  const int64_t rows = p.batches * p.n;
  const bool four = p.m % 4 == 0 && rows * p.m >= kManyOutputs &&
                    reinterpret_cast<uintptr_t>(p.dequantizer.b_scale) % 16 == 0;
  const int64_t columns = 32 * (four ? 4 : 1);
  const dim3 grid(static_cast<unsigned>((p.m + columns - 1) / columns),
                  static_cast<unsigned>(std::min<int64_t>((rows + kRows - 1) / kRows, 65535)));
  if (four) {
    launch_dependent<finish_kernel<4>>(grid, dim3(32 * kRows), 0, stream, p);
  } else {
    launch_dependent<finish_kernel<1>>(grid, dim3(32 * kRows), 0, stream, p);
  }
}

}  // namespace scmp::cuda
