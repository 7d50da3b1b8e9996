#include "gemm/reference.h"

#include <algorithm>
#include <cstdlib>

namespace scmp {

int64_t count_ones(const uint16_t* a_values, const uint16_t* b_values, int length, int a_code,
                   int b_code) {
  int64_t ones = 0;
  int enabled = 0;  // cycles that b's generator has advanced
  for (int t = 0; t < length; ++t) {
    if (a_values[t] >= a_code) continue;
    if (b_values[enabled] < b_code) ++ones;
    ++enabled;
  }
  return ones;
}

void reference_gemm(const GemmProblem& p, const ParallelFor& parallel) {
  const StreamSet& streams = *p.streams;
  parallel(p.batches * p.n * p.m, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t batch = i / (p.n * p.m), row = i / p.m % p.n, column = i % p.m;
      const int16_t* a = p.a_codes + (batch * p.n + row) * p.d;
      const int16_t* b = p.b_codes + (batch * p.m + column) * p.d;
      for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
        const int64_t first = chunk * p.chunk, last = std::min(p.d, first + p.chunk);
        const int length =
            p.row_lengths ? p.row_lengths[(batch * p.n + row) * p.chunks + chunk] : streams.length;
        int64_t sum = 0;
        for (int64_t d = first; d < last; ++d) {
          const int64_t lane = streams.lane(d - first);
          const int64_t ones = count_ones(streams.a_lane(lane), streams.b_lane(lane), length,
                                          std::abs(a[d]), std::abs(b[d]));
          sum += (a[d] < 0) != (b[d] < 0) ? -ones : ones;
        }
        dequantize_row(p.dequantizer, &sum, batch, row, chunk, column, 1, p.out + i);
      }
    }
  });
}

}  // namespace scmp
