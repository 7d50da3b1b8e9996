// sc_matmul: the check that every backend runs, and the plan they share.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "gemm/dequantize.h"
#include "ops/prepared_spec.h"
#include "ops/row_lengths.h"
#include "quant/quantize.h"
#include "streams/prepare.h"

namespace scmp {

enum class Granularity { per_row, per_tensor, per_head };

/// The operator's arguments after the tensors, as they came.
struct MatmulArgs {
  c10::string_view granularity, mode;
  int64_t sc_prec;
  LengthArgs lengths;
  int64_t chunk_d, group_a, group_b;
  std::optional<int64_t> rng_levels;
  std::optional<c10::string_view> config;
  bool halve_bipolar_stoc_len;
  std::optional<at::Tensor> smooth_scales;
};

/// A kernel of the operator from one that takes the arguments bundled.
template <at::Tensor (*kernel)(const at::Tensor&, const at::Tensor&, const MatmulArgs&)>
at::Tensor sc_matmul_kernel(const at::Tensor& a, const at::Tensor& b, c10::string_view granularity,
                            c10::string_view mode, int64_t sc_prec, std::optional<int64_t> stoc_len,
                            int64_t chunk_d, int64_t group_a, int64_t group_b,
                            std::optional<int64_t> rng_levels,
                            std::optional<c10::string_view> config, bool halve_bipolar_stoc_len,
                            const std::optional<at::Tensor>& smooth_scales,
                            const std::optional<at::Tensor>& row_stoc_len,
                            const std::optional<at::Tensor>& rung_table,
                            at::OptionalIntArrayRef level_lens) {
  return kernel(a, b,
                {granularity, mode, sc_prec,
                 length_args(stoc_len, row_stoc_len, rung_table, level_lens), chunk_d, group_a,
                 group_b, rng_levels, config, halve_bipolar_stoc_len, present(smooth_scales)});
}

/// The operator through the dispatcher, `args` after its operands.
at::Tensor call_sc_matmul(const at::Tensor& a, const at::Tensor& b, const MatmulArgs& args);

/// (..., N, columns) float32 for a of (..., N, D): filled with zeros where D is 0 or `zeroed`, else
/// not yet.
at::Tensor make_output(const at::Tensor& a, int64_t columns, bool zeroed);

/// Checked and resolved knobs.
struct MatmulKnobs {
  Granularity granularity;
  bool unipolar;
  int sc_prec, length, levels;
  int longest;  // length that a row can have: 2**sc_prec, or half of it
  bool by_row;  // rows have lengths of their own, at most `length`
  int64_t chunk_d, group_a, group_b;
  ScrambleSettings scramble;
  bool sync_checks;  // SCMP_SYNC_CHECKS: look at values that only the device knows
  std::shared_ptr<const RngConfig> config;

  int qmax() const { return unipolar ? unipolar_qmax(sc_prec) : bipolar_qmax(sc_prec); }
};

/// Raises ValueError for everything that does not need the tensors' values.
MatmulKnobs check_sc_matmul(const char* op, const at::Tensor& a, const at::Tensor& b,
                            const MatmulArgs& args);

/// The same without the tensors: operands of this rank, contracted over `depth`.
MatmulKnobs check_matmul_knobs(const char* op, int64_t rank, const c10::SymInt& depth,
                               const MatmulArgs& args);

/// Lengths by row against a and the knobs, which take over what follows from them.
void check_lengths_of_rows(const char* op, const at::Tensor& a, const LengthArgs& lengths,
                           MatmulKnobs& knobs);

/// The same for an operand b alone (a Prepared has no group_a and no length).
MatmulKnobs check_prepare(const char* op, const at::Tensor& b, const MatmulArgs& args);

/// The same from b's shape, as text.
std::string prepare_spec(at::IntArrayRef shape, const MatmulArgs& args, int64_t groups);

/// b as sc_matmul takes it: itself, or a convolution's weight (Cout, Cin / groups, kh, kw) as
/// (Cout, columns), with groups as (groups, Cout / groups, columns).
at::Tensor lowered_weight(const char* op, const at::Tensor& b, const MatmulArgs& args,
                          int64_t groups);

/// A kernel of `prepare` from one that takes the arguments bundled.
template <std::vector<at::Tensor> (*kernel)(const at::Tensor&, const MatmulArgs&, bool)>
std::vector<at::Tensor> prepare_kernel(const at::Tensor& b, c10::string_view granularity,
                                       c10::string_view mode, int64_t sc_prec, int64_t chunk_d,
                                       int64_t group_b, std::optional<int64_t> rng_levels,
                                       std::optional<c10::string_view> config,
                                       bool halve_bipolar_stoc_len,
                                       const std::optional<at::Tensor>& smooth_scales, bool expand,
                                       int64_t groups) {
  const MatmulArgs args{granularity,
                        mode,
                        sc_prec,
                        LengthArgs(),
                        chunk_d,
                        1,
                        group_b,
                        rng_levels,
                        config,
                        halve_bipolar_stoc_len,
                        present(smooth_scales)};
  return kernel(lowered_weight("prepare", b, args, groups), args, expand);
}

/// The tensors of a prepared b, in the order of the operators' list.
struct Prepared {
  at::Tensor codes;          // b's shape, int16: sign * code
  at::Tensor scales;         // (B, chunks, M) float32; B = 1 in 2D
  at::Tensor zero_points;    // (B, M) float32; per_row unipolar, else (0,)
  at::Tensor level_sums;     // (B, M) float32; unipolar, else (0,)
  at::Tensor tensor_map;     // (2,) float64: scale and zero point; per_tensor, else (0,)
  at::Tensor smooth_scales;  // (D,) float32, or (0,)
  at::Tensor expanded;       // (bytes,) uint8, or undefined: a CUDA kernel's bit patterns

  std::vector<at::Tensor> list() const;
};

/// Uninitialised tensors of the right shapes for b's knobs, without `expanded`.
Prepared empty_prepared(const at::Tensor& b, const MatmulKnobs& knobs, bool smooth);

/// The operator's arguments after a and b's tensors.
struct PreparedArgs {
  c10::string_view spec;
  int64_t group_a;
  LengthArgs lengths;
};

/// A kernel of the operator from one that takes the arguments bundled.
template <at::Tensor (*kernel)(const at::Tensor&, at::TensorList, const PreparedArgs&)>
at::Tensor prepared_kernel(const at::Tensor& a, at::TensorList b, c10::string_view spec,
                           int64_t group_a, std::optional<int64_t> stoc_len,
                           const std::optional<at::Tensor>& row_stoc_len,
                           const std::optional<at::Tensor>& rung_table,
                           at::OptionalIntArrayRef level_lens) {
  return kernel(a, b, {spec, group_a, length_args(stoc_len, row_stoc_len, rung_table, level_lens)});
}

/// The operator through the dispatcher.
at::Tensor call_prepared(const at::Tensor& a, at::TensorList b, const PreparedArgs& args);

/// Knobs of sc_matmul.prepared and its b.
struct PreparedCall {
  std::shared_ptr<const PreparedSpec> spec;
  MatmulKnobs knobs;
  Prepared b;
};

/// Raises ValueError where the tensors, the environment or the call do not fit the spec; then the
/// same with a.
PreparedCall check_prepared_b(const char* op, at::TensorList b, const PreparedArgs& args);
PreparedCall check_prepared(const at::Tensor& a, at::TensorList b, const PreparedArgs& args);

/// Raises ValueError for codes that no prepare made (a CPU tensor; a corrupted checkpoint).
void check_codes(const char* op, const at::Tensor& codes, const MatmulKnobs& knobs);

/// What the knobs mean for a contraction over `depth` positions: the same on every device.
struct MatmulPlan {
  StreamSpec streams;
  QuantScheme scheme;
  Grouping a_grouping, b_grouping;
  bool chunked;           // more than one chunk
  int64_t chunk, chunks;  // columns per chunk (depth when one)
};

MatmulPlan plan_sc_matmul(const MatmulKnobs& knobs, int64_t depth);

/// Kind and constants of the epilogue; sizes and pointers are the backend's.
Dequantizer make_dequantizer(const MatmulKnobs& knobs, const MatmulPlan& plan, int64_t depth);

}  // namespace scmp
