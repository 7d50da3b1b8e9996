// The public quantizers: checks that every backend runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "quant/scheme.h"

namespace scmp {

/// Resolved arguments of a fused quantizer.
struct FusedQuant {
  QuantScheme scheme;
  int levels;
};

FusedQuant check_fused_quantize_bipolar(const at::Tensor& x, double abs_max, int64_t sc_prec,
                                        std::optional<int64_t> rng_levels);
FusedQuant check_fused_quantize_bipolar_perrow(const at::Tensor& x, int64_t sc_prec,
                                               std::optional<int64_t> rng_levels);
FusedQuant check_fused_quantize_unipolar(const at::Tensor& x, double fp_max, double fp_min,
                                         int64_t sc_prec, std::optional<int64_t> rng_levels);
QuantScheme check_grouped_quant(const char* op, const at::Tensor& x, int64_t group, int64_t qmax,
                                bool unipolar);

}  // namespace scmp
