#include "gemm/cpu/few_rows.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "common/buffer.h"

namespace scmp {
namespace {

constexpr int64_t kMostRows = 2;                         // of a, over all batches
constexpr int64_t kMostTableBytes = int64_t{128} << 20;  // of all rows
constexpr int64_t kSlice = 128;                          // positions whose tables stay in the cache
constexpr int64_t kGrainProducts = int64_t{1} << 16;

int64_t table_entries(const GemmProblem& p) {
  return p.batches * p.n * p.d * (p.streams->levels + 1);
}

// table[row][position][code of b]: signed counts of the row's value at the position.
Buffer<int16_t> make_tables(const GemmProblem& p, const ParallelFor& parallel) {
  const StreamSet& streams = *p.streams;
  const int64_t rows = p.batches * p.n, entries = streams.levels + 1;
  Buffer<int16_t> tables(table_entries(p));
  parallel(rows * p.d, std::max<int64_t>(1, kGrainProducts / entries),
           [&](int64_t begin, int64_t end) {
             for (int64_t i = begin; i < end; ++i) {
               const int64_t position = i % p.d;
               const int64_t lane = streams.lane(position % p.chunk);
               const uint16_t *a = streams.a_lane(lane), *b = streams.b_lane(lane);
               const int code = p.a_cycles ? p.a_cycles[i] : p.a_codes[i];
               int cycles = p.a_cycles ? std::abs(code) : 0;
               for (int t = 0; !p.a_cycles && t < streams.length; ++t) {
                 cycles += a[t] < std::abs(code);
               }
               int16_t* table = tables.data() + i * entries;
               std::fill(table, table + entries, int16_t{0});
               const auto one = static_cast<int16_t>(code < 0 ? -1 : 1);
               for (int t = 0; t < cycles; ++t) table[b[t] + 1] += one;
               for (int64_t c = 1; c < entries; ++c) table[c] += table[c - 1];
             }
           });
  return tables;
}

int64_t slice_sum(const int16_t* table, int64_t entries, const int16_t* codes, int64_t count) {
  int32_t sum = 0;  // at most kSlice * 4096
  for (int64_t i = 0; i < count; ++i, table += entries) {
    const int code = codes[i], negative = code >> 15;  // without branches: signs are random
    sum += (table[(code ^ negative) - negative] ^ negative) - negative;
  }
  return sum;
}

}  // namespace

bool few_rows_fits(const GemmProblem& p) {
  return p.batches * p.n <= kMostRows &&
         table_entries(p) * static_cast<int64_t>(sizeof(int16_t)) <= kMostTableBytes;
}

void few_rows_gemm(const GemmProblem& p, const ParallelFor& parallel) {
  const Buffer<int16_t> tables = make_tables(p, parallel);
  const int64_t entries = p.streams->levels + 1;
  const int64_t grain = std::max<int64_t>(1, kGrainProducts / std::max<int64_t>(1, p.n * p.d));
  parallel(p.batches * p.m, grain, [&](int64_t begin, int64_t end) {
    // Columns of one batch at a time; slices outside, so that their tables stay close.
    while (begin < end) {
      const int64_t batch = begin / p.m, first = begin % p.m;
      const int64_t count = std::min(end - begin, p.m - first);
      std::vector<int64_t> sums(count);
      for (int64_t row = 0; row < p.n; ++row) {
        const int16_t* row_tables = tables.data() + (batch * p.n + row) * p.d * entries;
        float* y = p.out + (batch * p.n + row) * p.m + first;
        for (int64_t chunk = 0; chunk < p.chunks; ++chunk) {
          if (!row_counts(p.dequantizer, batch, row, chunk)) continue;
          const int64_t last = std::min(p.d, (chunk + 1) * p.chunk);
          std::fill(sums.begin(), sums.end(), 0);
          for (int64_t d = chunk * p.chunk; d < last; d += kSlice) {
            for (int64_t c = 0; c < count; ++c) {
              sums[c] += slice_sum(row_tables + d * entries, entries,
                                   p.b_codes + (batch * p.m + first + c) * p.d + d,
                                   std::min(kSlice, last - d));
            }
          }
          dequantize_row(p.dequantizer, sums.data(), batch, row, chunk, first, count, y);
        }
      }
      begin += count;
    }
  });
}

}  // namespace scmp
