#include "scmp_kernels/control.h"

#include "cache/stream_cache.h"
#include "common/error.h"
#include "cpu/isa.h"
#include "cpu/tuning.h"
#include "ops/build_info.h"
#if defined(SCMP_WITH_CUDA)
#include "ops/cuda/kernel_choice.h"
#endif

namespace scmp {

void clear_rng_cache() { rng_cache().clear(); }

std::map<std::string, int64_t> rng_cache_stats() {
  const CacheStats stats = rng_cache().stats();
  return {{"entries", stats.entries}, {"bytes", stats.bytes},   {"limit", stats.limit},
          {"hits", stats.hits},       {"misses", stats.misses}, {"evictions", stats.evictions}};
}

void set_rng_cache_limit(int64_t bytes) {
  require(bytes >= 0, "set_rng_cache_limit: bytes must be at least 0, got ", bytes);
  rng_cache().set_limit(bytes);
}

std::map<std::string, std::string> library_info() {
  return {{"version", SCMP_VERSION},
          {"torch", SCMP_TORCH_VERSION},
          {"compiler", SCMP_COMPILER},
          {"cuda", SCMP_CUDA_VERSION},
          {"cuda_archs", SCMP_CUDA_ARCHS}};
}

std::vector<std::string> cpu_kernels() { return available_cpu_kernels(); }
void set_cpu_kernel(const std::string& name) { force_cpu_kernel(name); }
std::string cpu_kernel() { return forced_cpu_kernel(); }

#if defined(SCMP_WITH_CUDA)
std::vector<std::string> cuda_kernels() { return cuda::kernel_names(); }
void set_cuda_kernel(const std::string& name) { cuda::force_kernel(name); }
std::string cuda_kernel() { return cuda::forced_kernel(); }
#else
std::vector<std::string> cuda_kernels() { return {}; }
void set_cuda_kernel(const std::string&) {
  throw ValueError("set_cuda_kernel: this build has no CUDA kernels");
}
std::string cuda_kernel() { return "auto"; }
#endif

void add_config(const std::string& digest, const std::string& json) {
  register_config(digest, json);
}
void remove_config(const std::string& digest) { unregister_config(digest); }
int64_t config_count() { return registered_configs(); }

std::vector<int> config_sequence(const std::string& json, const std::string& operand,
                                 int64_t position, int64_t sc_prec) {
  require(sc_prec >= kMinPrec && sc_prec <= kMaxPrec, "config_sequence: sc_prec must be in [",
          kMinPrec, ", ", kMaxPrec, "], got ", sc_prec);
  require(operand == "q" || operand == "k",
          "config_sequence: operand must be \"q\" or \"k\", got \"", operand, "\"");
  const auto config = parse_config(json);
  check_config(*config, static_cast<int>(sc_prec));
  const auto& sngs = operand == "q" ? config->a : config->b;
  const auto size = static_cast<int64_t>(sngs.size());
  require(position >= 0 && position < size, "config_sequence: position must be in [0, ", size - 1,
          "], got ", position);
  const auto values = sng_sequence(*config, sngs[position], static_cast<int>(sc_prec));
  return {values.begin(), values.end()};
}

void enter_det_tuning() { ++det_tuning_depth(); }
void leave_det_tuning() {
  require(det_tuning_depth() > 0, "leave_det_tuning: this thread is not in a tuning scope");
  --det_tuning_depth();
}

}  // namespace scmp
