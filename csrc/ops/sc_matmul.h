// sc_matmul: the check that every backend runs, and the plan they share.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>

#include "gemm/dequantize.h"
#include "quant/quantize.h"
#include "streams/prepare.h"

namespace scmp {

enum class Granularity { per_row, per_tensor, per_head };

/// The operator's arguments after the tensors, as they came.
struct MatmulArgs {
  c10::string_view granularity, mode;
  int64_t sc_prec;
  std::optional<int64_t> stoc_len;
  int64_t chunk_d, group_a, group_b;
  std::optional<int64_t> rng_levels;
  std::optional<c10::string_view> config;
  bool halve_bipolar_stoc_len;
  std::optional<at::Tensor> smooth_scales;
};

/// Checked and resolved knobs.
struct MatmulKnobs {
  Granularity granularity;
  bool unipolar;
  int sc_prec, length, levels;
  int64_t chunk_d, group_a, group_b;
  ScrambleSettings scramble;
  bool sync_checks;  // SCMP_SYNC_CHECKS: look at values that only the device knows
  std::shared_ptr<const RngConfig> config;

  int qmax() const { return unipolar ? unipolar_qmax(sc_prec) : bipolar_qmax(sc_prec); }
};

/// Raises ValueError for everything that does not need the tensors' values.
MatmulKnobs check_sc_matmul(const char* op, const at::Tensor& a, const at::Tensor& b,
                            const MatmulArgs& args);

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
