#include "gemm/cuda/finish.h"

#include <algorithm>

#include "gemm/cuda/tile/epilogue.cuh"
#include "quant/affine.h"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kTogether = 8;  // chunks whose sums are read before the first is used

__device__ void finish_output(const GemmProblem& p, int64_t a_row, int64_t column) {
  const int64_t count = p.batches * p.n * p.m, i = a_row * p.m + column;
  const int64_t batch = p.batches == 1 ? 0 : a_row / p.n, row = a_row - batch * p.n;
  const int64_t parts = p.slots / p.chunks;
  const int32_t* from = p.partial + i;
  const Dequantizer& q = p.dequantizer;
  float y = 0.0f;
  if (q.kind == Epilogue::chunk && parts == 1) {
    // Many dependent additions: everything they need is read ahead.
    const float* a_scale = q.a_scale + a_row * p.chunks;
    const float* b_scale = q.b_scale + batch * p.chunks * p.m + column;
    const int chunks = static_cast<int>(p.chunks);
#pragma unroll 1
    for (int first = 0; first < chunks; first += kTogether) {
      int sum[kTogether];
      float a[kTogether], b[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        sum[j] = *from;
        a[j] = *a_scale;
        b[j] = *b_scale;
        const bool more = first + j + 1 < chunks;
        from += more ? count : 0;
        a_scale += more;
        b_scale += more ? p.m : 0;
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (first + j >= chunks) break;
        y = f32_add(y, scaled_value(static_cast<float>(sum[j]), q.c, a[j], b[j]));
      }
    }
    if (p.damaged && p.damaged[batch * p.m + column]) y = quiet_nan();
  } else {
    for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
      long long sum = 0;
#pragma unroll 8
      for (int64_t part = 0; part < parts; ++part) sum += from[(chunk * parts + part) * count];
      y = output_value(p, batch, row, column, chunk, sum, y);
    }
  }
  p.out[i] = y;
}

__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ GemmProblem p) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= p.m) return;
  for (int64_t a_row = blockIdx.y; a_row < p.batches * p.n; a_row += gridDim.y) {
    finish_output(p, a_row, column);
  }
}

}  // namespace

void finish(const GemmProblem& p, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((p.m + kThreads - 1) / kThreads),
                  static_cast<unsigned>(std::min<int64_t>(p.batches * p.n, 65535)));
  finish_kernel<<<grid, kThreads, 0, stream>>>(p);
}

}  // namespace scmp::cuda
