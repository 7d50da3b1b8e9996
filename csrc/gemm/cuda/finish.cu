#include "gemm/cuda/finish.h"

#include "gemm/cuda/tile/epilogue.cuh"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ GemmProblem p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x, count = p.batches * p.n * p.m;
  if (i >= count) return;
  const int64_t batch = i / (p.n * p.m), row = i / p.m % p.n, column = i % p.m;
  const int64_t parts = p.slots / p.chunks;
  const int32_t* from = p.partial + i;
  float y = 0.0f;
  for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
    long long sum = 0;
#pragma unroll 8
    for (int64_t part = 0; part < parts; ++part) sum += from[(chunk * parts + part) * count];
    y = output_value(p, batch, row, column, chunk, sum, y);
  }
  p.out[i] = y;
}

}  // namespace

void finish(const GemmProblem& p, cudaStream_t stream) {
  const int64_t blocks = (p.batches * p.n * p.m + kThreads - 1) / kThreads;
  finish_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p);
}

}  // namespace scmp::cuda
