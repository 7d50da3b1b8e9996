// A shorter stream is a prefix of a longer one, so one call with the longest streams serves all
// rows: only the number of cycles that a code of a enables differs. The exception is a grid where a
// full sequence is used unscrambled and shorter ones are not. Rows are then split into those that
// need the one, the other, or (by chunk) both; the last have every position twice.
#include "gemm/cpu/row_lengths.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "cache/stream_cache.h"
#include "gemm/cpu/gemm_cpu.h"
#include "gemm/rank_tables.h"

namespace scmp {
namespace {

constexpr int64_t kGrainCodes = int64_t{1} << 14;

using Lengths = std::vector<int16_t>;  // (batches * n, chunks)

// Signed cycles that a's codes enable in streams of their rows' lengths.
Buffer<int16_t> enabled_cycles(const GemmProblem& p, const ParallelFor& parallel) {
  const StreamSet& streams = *p.streams;
  const int64_t rows = p.batches * p.n;
  const bool keep = RankTables::total_bytes(streams) <= rng_cache().limit() / 2;
  const auto make = [&] { return RankTables(streams, RankOf::a, keep); };
  const auto tables = keep ? rng_cache().get<RankTables>("rank_a/" + p.stream_key, make)
                           : std::make_shared<const RankTables>(make());
  Buffer<int16_t> cycles(rows * p.d);
  const auto encode = [&](int64_t row, int64_t d, const uint64_t* words) {
    const int code = p.a_codes[row * p.d + d];
    const int k = tables->count(words, p.row_lengths[row * p.chunks + d / p.chunk], std::abs(code));
    cycles[row * p.d + d] = static_cast<int16_t>(code < 0 ? -k : k);
  };
  if (keep) {
    parallel(rows, std::max<int64_t>(1, kGrainCodes / p.d), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t d = 0; d < p.d; ++d) {
          encode(row, d, tables->lane(streams.lane(d % p.chunk)));
        }
      }
    });
  } else {
    parallel(p.d, 1, [&](int64_t begin, int64_t end) {
      Buffer<uint64_t> words(tables->lane_words());
      for (int64_t d = begin; d < end; ++d) {
        tables->build_lane(streams, streams.lane(d % p.chunk), words.data());
        for (int64_t row = 0; row < rows; ++row) encode(row, d, words.data());
      }
    });
  }
  return cycles;
}

// The gemm for those rows (and chunks) whose length is not 0.
void run(GemmProblem p, const StreamSpec& spec, const Lengths& lengths, CpuKernel kernel,
         const ParallelFor& parallel) {
  const auto streams = cached_streams(spec);
  p.streams = streams.get();
  p.stream_key = stream_key(spec);
  p.row_lengths = lengths.data();
  std::vector<float> row_c(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    row_c[i] = lengths[i] == 0 ? 0.0f : length_factor(p.dequantizer.qmax_squared, lengths[i]);
  }
  p.dequantizer.row_c = row_c.data();
  const Buffer<int16_t> cycles = enabled_cycles(p, parallel);
  p.a_cycles = cycles.data();
  cpu_gemm(p, kernel, parallel);
}

// Every code twice: for both streams of its position.
Buffer<int16_t> twice(const int16_t* codes, int64_t count) {
  Buffer<int16_t> out(2 * count);
  for (int64_t i = 0; i < count; ++i) out[2 * i] = out[2 * i + 1] = codes[i];
  return out;
}

// Rows that mix full streams and shorter ones: positions 2j and 2j + 1 are position j with the
// shorter and the full stream, and a row's code is 0 at the one that its chunk does not use.
void run_both(GemmProblem p, StreamSpec spec, const Lengths& lengths, CpuKernel kernel,
              const ParallelFor& parallel) {
  const Buffer<int16_t> b = twice(p.b_codes, p.batches * p.m * p.d);
  Buffer<int16_t> a = twice(p.a_codes, p.batches * p.n * p.d);
  for (int64_t row = 0; row < p.batches * p.n; ++row) {
    for (int64_t d = 0; d < p.d; ++d) {
      const bool full = lengths[row * p.chunks + d / p.chunk] == spec.length;
      a[2 * (row * p.d + d) + !full] = 0;
    }
  }
  p.a_codes = a.data();
  p.b_codes = b.data();
  p.d *= 2;
  p.chunk *= 2;
  spec.full_and_shorter = true;
  run(p, spec, lengths, kernel, parallel);
}

}  // namespace

void row_lengths_gemm(GemmProblem p, StreamSpec spec, const int16_t* lengths, CpuKernel kernel,
                      const ParallelFor& parallel) {
  const int64_t rows = p.batches * p.n, count = rows * p.chunks;
  const int full = 1 << spec.sc_prec;
  enum { shorter, whole, both, kinds };
  Lengths of_kind[kinds];
  const bool one_kind = lengths_share_sequences(spec);
  int longest = 0;  // of those that one sequence serves
  for (int64_t row = 0; row < rows; ++row) {
    const int16_t *first = lengths + row * p.chunks, *last = first + p.chunks;
    const bool has_full = !one_kind && std::find(first, last, full) != last;
    const bool has_shorter =
        std::any_of(first, last, [&](int16_t l) { return l > 0 && (one_kind || l < full); });
    if (!has_full && !has_shorter) continue;
    Lengths& kind = of_kind[has_full && has_shorter ? both : has_full ? whole : shorter];
    kind.resize(count, 0);
    std::copy(first, last, kind.begin() + row * p.chunks);
    if (!has_full) longest = std::max<int>(longest, *std::max_element(first, last));
  }
  if (!of_kind[shorter].empty()) {
    spec.length = longest;
    run(p, spec, of_kind[shorter], kernel, parallel);
  }
  spec.length = full;
  if (!of_kind[whole].empty()) run(p, spec, of_kind[whole], kernel, parallel);
  if (!of_kind[both].empty()) run_both(p, spec, of_kind[both], kernel, parallel);
}

}  // namespace scmp
