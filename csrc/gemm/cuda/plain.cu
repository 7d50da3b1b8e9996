#include "gemm/cuda/lanes.cuh"
#include "gemm/cuda/plain.h"
#include "gemm/cuda/tile/epilogue.cuh"

namespace scmp::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) plain(const __grid_constant__ GemmProblem p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.batches * p.n * p.m) return;
  const int64_t batch = i / (p.n * p.m), row = i / p.m % p.n, column = i % p.m;
  const DeviceTables& t = p.tables;
  for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
    const int64_t count = chunk_columns(p, chunk);
    const int16_t* codes = b_codes_at(p, batch, chunk, column);
    long long sum = 0;
    bool bad = false;
    for (int64_t d = 0; d < count; ++d) {
      const int k = a_cycles_at(p, batch, chunk, row, d);
      const int code = checked_code(p, codes[d], bad);
      const uint16_t* values = t.b_values + lane_of_position(t.lane_of, t.lanes, d) * t.length;
      int ones = 0;
      for (int cycle = 0; cycle < abs(k); ++cycle) ones += values[cycle] < abs(code);
      sum += (k < 0) != (code < 0) ? -ones : ones;
    }
    if (bad) mark_damaged(p, batch, column);
    write_output(p, batch, row, column, chunk, sum);
  }
}

}  // namespace

void plain_gemm(const GemmProblem& p, cudaStream_t stream) {
  const int64_t blocks = (p.batches * p.n * p.m + kThreads - 1) / kThreads;
  plain<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p);
}

}  // namespace scmp::cuda
