// Process-wide controls of the operator library: caches, kernel choice, configs. No torch needed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scmp_kernels/export.h"

namespace scmp {

/// Drops every cached RNG sequence and count table. Registered configs stay.
SCMP_API void clear_rng_cache();

/// entries, bytes, limit, hits, misses, evictions.
SCMP_API std::map<std::string, int64_t> rng_cache_stats();

/// Bounds the cache to this many bytes (default 512 MiB), evicting what no longer fits.
SCMP_API void set_rng_cache_limit(int64_t bytes);

/// What this library was built with: version, torch, compiler, cuda ("" when built without).
SCMP_API std::map<std::string, std::string> library_info();

/// CPU kernels this machine can run, "reference" first, the automatic choice last.
SCMP_API std::vector<std::string> cpu_kernels();
/// Forces one of them for every following call ("auto" undoes); std::invalid_argument if it cannot.
SCMP_API void set_cpu_kernel(const std::string& name);
SCMP_API std::string cpu_kernel();

/// The same for the CUDA kernels; empty and std::invalid_argument in a build without them.
SCMP_API std::vector<std::string> cuda_kernels();
SCMP_API void set_cuda_kernel(const std::string& name);
SCMP_API std::string cuda_kernel();

/// Keeps a config (JSON) usable under its digest "sha256:..." until as many remove_config calls.
SCMP_API void add_config(const std::string& digest, const std::string& json);
SCMP_API void remove_config(const std::string& digest);
SCMP_API int64_t config_count();

/// The 2**sc_prec values that a config drives position `position` of operand "q" (a) or "k" (b)
/// with, before scrambling: what another implementation can be checked against.
SCMP_API std::vector<int> config_sequence(const std::string& json, const std::string& operand,
                                          int64_t position, int64_t sc_prec);

/// Enters or leaves this thread's tuning scope: other tile sizes where a kernel has a choice.
SCMP_API void enter_det_tuning();
SCMP_API void leave_det_tuning();

}  // namespace scmp
