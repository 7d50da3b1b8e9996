#include "ops/quantizers.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "ops/tensor_checks.h"

namespace scmp {
namespace {

constexpr int64_t kLargestQmax = int64_t{1} << 24;  // levels stay exact in float32

FusedQuant check_fused(const char* op, const at::Tensor& x, int64_t sc_prec,
                       std::optional<int64_t> rng_levels, bool unipolar, Rounding rounding) {
  check_rank(op, "x", x, 2, 2);
  check_dtype(op, "x", x);
  check_sc_prec(op, sc_prec);
  if (rng_levels) check_level_count(op, "rng_levels", *rng_levels, sc_prec);
  FusedQuant quant;
  const int prec = static_cast<int>(sc_prec);
  quant.scheme = {rounding, unipolar, unipolar ? unipolar_qmax(prec) : bipolar_qmax(prec)};
  quant.levels = static_cast<int>(rng_levels.value_or(int64_t{1} << sc_prec));
  return quant;
}

}  // namespace

FusedQuant check_fused_quantize_bipolar(const at::Tensor& x, double abs_max, int64_t sc_prec,
                                        std::optional<int64_t> rng_levels) {
  const char* op = "fused_quantize_bipolar";
  TORCH_CHECK_VALUE(std::isfinite(abs_max) && abs_max >= 0, op,
                    ": abs_max must be finite and at least 0, got ", abs_max);
  return check_fused(op, x, sc_prec, rng_levels, false, Rounding::tensor);
}

FusedQuant check_fused_quantize_bipolar_perrow(const at::Tensor& x, int64_t sc_prec,
                                               std::optional<int64_t> rng_levels) {
  return check_fused("fused_quantize_bipolar_perrow", x, sc_prec, rng_levels, false,
                     Rounding::multiply);
}

FusedQuant check_fused_quantize_unipolar(const at::Tensor& x, double fp_max, double fp_min,
                                         int64_t sc_prec, std::optional<int64_t> rng_levels) {
  const char* op = "fused_quantize_unipolar";
  TORCH_CHECK_VALUE(std::isfinite(fp_max), op, ": fp_max must be finite, got ", fp_max);
  TORCH_CHECK_VALUE(std::isfinite(fp_min), op, ": fp_min must be finite, got ", fp_min);
  TORCH_CHECK_VALUE(fp_min <= fp_max, op, ": fp_min must not exceed fp_max = ", fp_max, ", got ",
                    fp_min);
  TORCH_CHECK_VALUE(std::isfinite(fp_max - fp_min), op,
                    ": the range fp_max - fp_min must be finite, got fp_max = ", fp_max,
                    ", fp_min = ", fp_min);
  return check_fused(op, x, sc_prec, rng_levels, true, Rounding::tensor);
}

QuantScheme check_grouped_quant(const char* op, const at::Tensor& x, int64_t group, int64_t qmax,
                                bool unipolar) {
  check_rank(op, "x", x, 2, 3);
  check_dtype(op, "x", x);
  TORCH_CHECK_VALUE(group >= 1, op, ": g must be at least 1, got ", group);
  TORCH_CHECK_VALUE(qmax >= 1 && qmax <= kLargestQmax, op, ": qmax must be in [1, ", kLargestQmax,
                    "], got ", qmax);
  return {Rounding::divide, unipolar, static_cast<int>(qmax)};
}

}  // namespace scmp
