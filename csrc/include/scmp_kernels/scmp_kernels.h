// C++ interface of scmp_kernels: the operators on at::Tensor, without Python.
//
// Everything goes through the PyTorch dispatcher, so gradients and devices behave as in Python.
// Bad arguments throw c10::ValueError with one line of text. docs/semantics.md has the numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "scmp_kernels/control.h"
#include "scmp_kernels/export.h"

namespace scmp {

/// The knobs of sc_matmul, with Python's defaults.
struct MatmulOptions {
  std::string granularity = "per_row";  // "per_row", "per_tensor", "per_head"
  std::string mode = "bipolar";         // "bipolar", "unipolar"
  int64_t sc_prec = 8;                  // bits, 2..12
  std::optional<int64_t> stoc_len;      // cycles, 1..2**sc_prec
  int64_t chunk_d = 0;                  // columns per chunk, 0: none
  int64_t group_a = 1, group_b = 1;     // rows that share a scale
  std::optional<int64_t> rng_levels;    // stream grid, 1..2**sc_prec
  std::optional<std::string> config;    // JSON; empty: the default Sobol pair
  bool halve_bipolar_stoc_len = false;
  std::optional<at::Tensor> smooth_scales;  // (D,)
  std::optional<at::Tensor> row_stoc_len;   // integers (N,), (B, N) or (N, chunks): cycles by row
  std::optional<at::Tensor> rung_table;     // integers (N, chunks): indices into level_lens
  std::optional<std::vector<int64_t>> level_lens;
};

/// a (N, D) or (B, N, D), b (M, D) or (B, M, D) -> float32 (N, M) or (B, N, M): a @ b.T in
/// stochastic computing.
SCMP_API at::Tensor sc_matmul(const at::Tensor& a, const at::Tensor& b,
                              const MatmulOptions& options = {});

/// x (R, C) -> boundary (R, C) int16, sign (R, C) int8, for the range [-abs_max, abs_max].
SCMP_API std::tuple<at::Tensor, at::Tensor> fused_quantize_bipolar(
    const at::Tensor& x, double abs_max, int64_t sc_prec,
    std::optional<int64_t> rng_levels = std::nullopt);

/// x (R, C) -> boundary int16, sign int8, scale (R,) float32.
SCMP_API std::tuple<at::Tensor, at::Tensor, at::Tensor> fused_quantize_bipolar_perrow(
    const at::Tensor& x, int64_t sc_prec, std::optional<int64_t> rng_levels = std::nullopt);

/// x (R, C) -> boundary (R, C) int32, row_sum (R,) float32 of the levels when compute_sum.
SCMP_API std::tuple<at::Tensor, std::optional<at::Tensor>> fused_quantize_unipolar(
    const at::Tensor& x, double fp_max, double fp_min, int64_t sc_prec, bool compute_sum = false,
    std::optional<int64_t> rng_levels = std::nullopt);

/// x (..., R, C), 2D or 3D -> scale (..., R) float32, q (..., R, C) float32, sign int8.
SCMP_API std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_symmetric_quant(const at::Tensor& x,
                                                                                int64_t group,
                                                                                int64_t qmax);
/// x (..., R, C), 2D or 3D -> scale (..., R), zero_point (..., R), q (..., R, C), all float32.
SCMP_API std::tuple<at::Tensor, at::Tensor, at::Tensor> grouped_asymmetric_quant(
    const at::Tensor& x, int64_t group, int64_t qmax);

}  // namespace scmp
