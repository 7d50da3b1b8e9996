// What a prepared operand was made for, as text that travels with it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "streams/environment.h"

namespace scmp {

struct PreparedSpec {
  std::vector<int64_t> shape;   // of b: (M, D) or (B, M, D)
  std::vector<int64_t> kernel;  // (kh, kw) where b is a convolution's weight; else empty
  std::string granularity, mode;
  int64_t sc_prec = 8, chunk_d = 0, group_b = 1;
  std::optional<int64_t> rng_levels;
  std::optional<std::string> config;  // JSON, or the digest of a config alive in this process
  bool halve_bipolar_stoc_len = false;
  bool smooth = false;  // it holds smooth_scales
  ScrambleSettings scramble;

  int64_t batches() const { return shape.size() == 3 ? shape[0] : 1; }
  int64_t rows() const { return shape[shape.size() - 2]; }
  int64_t depth() const { return shape.back(); }
  size_t bytes() const { return sizeof *this + (config ? config->size() : 0); }
};

std::string write_prepared_spec(const PreparedSpec& spec);

/// Parsed and kept in the cache; ValueError that names the key for malformed text.
std::shared_ptr<const PreparedSpec> read_prepared_spec(const std::string& text);

}  // namespace scmp
