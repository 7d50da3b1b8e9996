#include "gemm/cpu/gemm_cpu.h"

#include <algorithm>

#include "cache/stream_cache.h"
#include "gemm/cpu/byte_gemm.h"
#include "gemm/cpu/few_rows.h"
#include "gemm/cpu/rank_gemm.h"
#include "gemm/reference.h"

namespace scmp {
namespace {

constexpr int64_t kLongestByteSum = int64_t{1} << 31;  // D * L that 32-bit sums hold

constexpr int64_t kLargestTables = int64_t{UINT32_MAX};  // byte tables are addressed with 32 bits

// Below this many outputs, building a rank table per position costs more than counting cycles.
constexpr int64_t kFewOutputs = 2048;

Isa isa_of(CpuKernel kernel) {
  return kernel == CpuKernel::avx512 ? Isa::avx512
         : kernel == CpuKernel::avx2 ? Isa::avx2
                                     : Isa::scalar;
}

// Tables of all lanes from the cache, or (too large to keep) one that builds lanes where needed;
// `make` takes whether they are to hold the lanes.
template <typename Make>
auto tables_for(const GemmProblem& p, const char* kind, int64_t bytes, const Make& make) {
  using Tables = decltype(make(true));
  const int64_t most = std::min(rng_cache().limit() / 2, kLargestTables);
  if (bytes > most) return std::make_shared<const Tables>(make(false));
  return rng_cache().get<Tables>(kind + p.stream_key, [&] { return make(true); });
}

}  // namespace

void cpu_gemm(const GemmProblem& p, CpuKernel kernel, const ParallelFor& parallel) {
  if (kernel == CpuKernel::reference) return reference_gemm(p, parallel);
  if (few_rows_fits(p)) return few_rows_gemm(p, parallel);
  const ByteLayout layout = choose_byte_layout(*p.streams);
  if (layout.usable && std::min(p.chunk, p.d) < kLongestByteSum / 256) {
    const int64_t bytes = ByteTables::total_bytes(*p.streams, layout);
    const auto tables =
        tables_for(p, "bytes/", bytes, [&](bool lanes) { return ByteTables(*p.streams, lanes); });
    return byte_gemm(p, tables, isa_of(kernel), parallel);
  }
  const auto tables = tables_for(p, "rank/", RankTables::total_bytes(*p.streams), [&](bool lanes) {
    return RankTables(*p.streams, RankOf::b, lanes);
  });
  if (!tables->has_lanes() && p.n * p.m < kFewOutputs) return reference_gemm(p, parallel);
  rank_gemm(p, tables, isa_of(kernel), parallel);
}

}  // namespace scmp
