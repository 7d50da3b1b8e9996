// Mixed precision: which rows and groups get which stream length. Tensor arithmetic without a host
// sync, the same on every device.
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/error.h"
#include "ops/tensor_checks.h"

namespace scmp {
namespace {

constexpr int64_t kMostLevels = 4097;    // as many lengths as a stream can have, 0 included
constexpr double kSmallestRange = 1e-8;  // of a metric: below it all rows are alike
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- metrics of rows -----------------------------------------------------------------------------

at::Tensor compute_row_metric(const at::Tensor& x, c10::string_view name) {
  const char* op = "compute_row_metric";
  TORCH_CHECK_VALUE(x.dim() >= 2, op, ": x must have shape (..., N, D), got ", x.dim(),
                    "D of shape ", x.sym_sizes());
  check_dtype(op, "x", x);
  TORCH_CHECK_VALUE(name == "amax" || name == "l2" || name == "crest", op,
                    ": name must be 'amax', 'l2' or 'crest', got ",
                    in_quotes(std::string_view(name)));
  const at::Tensor values = x.to(at::kDouble);
  if (x.sym_size(-1) == 0) return values.sum({-1}).to(at::kFloat);  // over nothing: 0
  if (name == "amax") return values.abs().amax(-1).to(at::kFloat);
  const at::Tensor l2 = values.square().sum({-1}).sqrt();
  if (name == "l2") return l2.to(at::kFloat);
  return (values.abs().amax(-1) / (l2 + 1e-12)).to(at::kFloat);
}

// --- rows by rank or by threshold ----------------------------------------------------------------

void check_metric(const char* op, const at::Tensor& metric) {
  check_rank(op, "metric", metric, 1, 1);
  check_dtype(op, "metric", metric);
}

void check_fractions(const char* op, at::ArrayRef<double> fractions) {
  double sum = 0.0;
  TORCH_CHECK_VALUE(!fractions.empty(), op, ": level_fractions must not be empty");
  for (double f : fractions) {
    TORCH_CHECK_VALUE(f >= 0.0 && f <= 1.0, op, ": level_fractions must lie in [0, 1], got ", f);
    sum += f;
  }
  TORCH_CHECK_VALUE(std::abs(sum - 1.0) <= 1e-3, op,
                    ": level_fractions must add up to 1 within 0.001, got ", sum);
}

// The best rows to level 0 and so on; ties keep the lower index first, NaN counts as largest.
at::Tensor levels_by_rank(const at::Tensor& metric, at::ArrayRef<double> fractions) {
  const int64_t rows = metric.size(0);
  const at::Tensor order =
      std::get<1>(at::sort(metric.to(at::kFloat), /*stable=*/true, /*dim=*/0, /*descending=*/true));
  // Levels by rank, filled on the host's count of rows.
  at::Tensor by_rank = at::zeros({rows}, metric.options().dtype(at::kLong));
  int64_t first = 0;
  for (size_t i = 0; i < fractions.size(); ++i) {
    const bool last = i + 1 == fractions.size();
    const auto wanted = static_cast<int64_t>(std::nearbyint(fractions[i] * rows));
    const int64_t count = last ? rows - first : std::min(wanted, rows - first);
    by_rank.slice(0, first, first + count).fill_(static_cast<int64_t>(i));
    first += count;
  }
  return at::zeros_like(by_rank).scatter(0, order, by_rank);
}

at::Tensor classify_rows_by_metric(const at::Tensor& metric, at::ArrayRef<double> fractions) {
  const char* op = "classify_rows_by_metric";
  check_metric(op, metric);
  check_fractions(op, fractions);
  return levels_by_rank(metric, fractions);
}

// Level i at the first threshold that the normalised metric reaches, the last level below all.
at::Tensor levels_by_threshold(const at::Tensor& metric, at::ArrayRef<double> thresholds) {
  const at::Tensor m = metric.to(at::kFloat);
  at::Tensor levels = at::zeros_like(m, m.options().dtype(at::kLong));
  if (metric.sym_size(0) == 0) return levels;
  const at::Tensor finite = m.isfinite();
  const at::Tensor least = at::where(finite, m, at::full_like(m, kInfinity)).amin(0);
  const at::Tensor range = at::where(finite, m, at::full_like(m, -kInfinity)).amax(0) - least;
  const at::Tensor normalised = (m - least) / range;
  for (double threshold : thresholds) {
    levels = levels + (normalised < static_cast<double>(static_cast<float>(threshold)));
  }
  // Rows that are all alike, and NaN rows (which are below no threshold), are level 0.
  const at::Tensor alike = (range.to(at::kDouble) < kSmallestRange).logical_or(range == kInfinity);
  return levels.masked_fill(alike, 0);
}

void check_adaptive(const at::Tensor& metric, const std::optional<at::ArrayRef<double>>& fractions,
                    const std::optional<at::ArrayRef<double>>& thresholds) {
  const char* op = "adaptive_classify_rows";
  check_metric(op, metric);
  TORCH_CHECK_VALUE(fractions.has_value() != thresholds.has_value(), op,
                    ": give either target_fractions or thresholds");
  if (fractions) return check_fractions(op, *fractions);
  double before = 1.0;
  for (double t : *thresholds) {
    TORCH_CHECK_VALUE(t >= 0.0 && t <= before, op,
                      ": thresholds must be non-increasing in [0, 1], got ", t, " after ", before);
    before = t;
  }
}

at::Tensor adaptive_classify_rows(const at::Tensor& metric,
                                  const std::optional<at::ArrayRef<double>>& fractions,
                                  const std::optional<at::ArrayRef<double>>& thresholds) {
  check_adaptive(metric, fractions, thresholds);
  if (fractions) return levels_by_rank(metric, *fractions);
  return levels_by_threshold(metric, *thresholds);
}

// --- groups of rows of a weight ------------------------------------------------------------------

at::Tensor classify_groups_by_range(const at::Tensor& weight, int64_t group_size, double threshold,
                                    int64_t levels) {
  const char* op = "classify_groups_by_range";
  check_rank(op, "weight", weight, 2, 2);
  check_dtype(op, "weight", weight);
  TORCH_CHECK_VALUE(threshold >= 0.0 && threshold <= 1.0, op, ": threshold must be in [0, 1], got ",
                    threshold);
  TORCH_CHECK_VALUE(levels >= 2 && levels <= kMostLevels, op, ": levels must be in [2, ",
                    kMostLevels, "], got ", levels);
  const c10::SymInt rows = weight.sym_size(0);
  const auto options = weight.options().dtype(at::kLong);
  if (rows == 0) return at::zeros({0}, options);
  const c10::SymInt size = group_size <= 0 || rows <= group_size ? rows : group_size;
  TORCH_CHECK_VALUE(rows % size == 0, op, ": group_size must divide the ", rows,
                    " rows of weight, got ", group_size);
  const c10::SymInt groups = rows / size;
  if (weight.sym_size(1) == 0) return at::zeros_symint({groups}, options);
  const at::Tensor values =
      weight.to(at::kFloat).reshape_symint({groups, size * weight.sym_size(1)});
  const at::Tensor range = values.amax(-1) - values.amin(-1);
  const at::Tensor least = range.amin();
  const at::Tensor normalised = (range - least) / (range.amax() - least + 1e-8);
  at::Tensor out = at::zeros_symint({groups}, options);
  const double t = std::min(threshold, 0.95);
  for (int64_t k = 0; k + 1 < levels; ++k) {
    const auto boundary = static_cast<float>(t * static_cast<double>(levels - 1 - k) /
                                             static_cast<double>(levels - 1));
    out = at::where(normalised < static_cast<double>(boundary), at::full_like(out, k + 1), out);
  }
  return out;
}

void register_all(torch::Library& m) {
  m.impl("compute_row_metric", compute_row_metric);
  m.impl("classify_rows_by_metric", classify_rows_by_metric);
  m.impl("adaptive_classify_rows", adaptive_classify_rows);
  m.impl("classify_groups_by_range", classify_groups_by_range);
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, CPU, m) { register_all(m); }
TORCH_LIBRARY_IMPL(scmp, CUDA, m) { register_all(m); }

// Shapes alone; sizes stay symbolic.
namespace {

at::Tensor row_levels_meta(const at::Tensor& metric) {
  return at::empty_symint(metric.sym_sizes(), metric.options().dtype(at::kLong));
}

}  // namespace

TORCH_LIBRARY_IMPL(scmp, Meta, m) {
  m.impl("compute_row_metric", compute_row_metric);
  m.impl("classify_rows_by_metric", [](const at::Tensor& metric, at::ArrayRef<double> fractions) {
    check_metric("classify_rows_by_metric", metric);
    check_fractions("classify_rows_by_metric", fractions);
    return row_levels_meta(metric);
  });
  m.impl("adaptive_classify_rows",
         [](const at::Tensor& metric, const std::optional<at::ArrayRef<double>>& fractions,
            const std::optional<at::ArrayRef<double>>& thresholds) {
           check_adaptive(metric, fractions, thresholds);
           return row_levels_meta(metric);
         });
  m.impl("classify_groups_by_range", classify_groups_by_range);
}

}  // namespace scmp
