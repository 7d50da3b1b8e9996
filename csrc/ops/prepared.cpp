// A prepared b: its tensors, and the check of calls that use it.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>

#include "common/error.h"
#include "ops/cpu/tensor_source.h"
#include "ops/sc_matmul.h"
#include "ops/tensor_checks.h"
#include "ops/value_error.h"

namespace scmp {
namespace {

constexpr const char* kOp = "sc_matmul";

struct Part {
  const char* name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
};

// What a prepared b of this shape and these knobs consists of.
std::vector<Part> parts_of(at::IntArrayRef shape, const MatmulKnobs& knobs, bool smooth) {
  const int64_t batches = shape.size() == 3 ? shape[0] : 1, rows = shape[shape.size() - 2];
  const int64_t depth = shape.back();
  const bool tensor = knobs.granularity == Granularity::per_tensor;
  const auto where = [](bool present, std::vector<int64_t> sizes) {
    return present ? std::move(sizes) : std::vector<int64_t>{0};
  };
  return {{"codes", at::kShort, shape.vec()},
          {"scales", at::kFloat, {batches, chunk_count(depth, knobs.chunk_d), rows}},
          {"zero_points", at::kFloat, where(knobs.unipolar && !tensor, {batches, rows})},
          {"level_sums", at::kFloat, where(knobs.unipolar, {batches, rows})},
          {"tensor_affine", at::kDouble, where(tensor, {2})},
          {"smooth_scales", at::kFloat, where(smooth, {depth})}};
}

Prepared from_list(at::TensorList list) {
  Prepared b{list[0], list[1], list[2], list[3], list[4], list[5], {}};
  if (list.size() > 6) b.expanded = list[6];
  return b;
}

void check_environment(const char* op, const PreparedSpec& spec, const ScrambleSettings& now) {
  TORCH_CHECK_VALUE(spec.scramble.mode == now.mode && spec.scramble.masks == now.masks &&
                        spec.scramble.rescaled_grid == now.rescaled_grid,
                    op,
                    ": b was prepared under other SC_OWEN_MODE, SC_DISABLE_OWEN, "
                    "SC_SCRAMBLE_MASKS or SC_SCRAMBLE_RESCALE than the environment has now; "
                    "prepare it again");
}

}  // namespace

std::vector<at::Tensor> Prepared::list() const {
  std::vector<at::Tensor> out = {codes, scales, zero_points, level_sums, tensor_map, smooth_scales};
  if (expanded.defined()) out.push_back(expanded);
  return out;
}

Prepared empty_prepared(const at::Tensor& b, const MatmulKnobs& knobs, bool smooth) {
  std::vector<at::Tensor> list;
  for (const Part& part : parts_of(b.sizes(), knobs, smooth)) {
    list.push_back(at::empty(part.shape, b.options().dtype(part.dtype)));
  }
  return from_list(list);
}

PreparedCall check_prepared_b(const char* op, at::TensorList b, const PreparedArgs& args) {
  PreparedCall call;
  call.spec = with_value_errors(op, [&] { return read_prepared_spec(std::string(args.spec)); });
  const PreparedSpec& spec = *call.spec;
  std::optional<c10::string_view> config;
  if (spec.config) config = *spec.config;
  call.knobs = check_matmul_knobs(
      op, static_cast<int64_t>(spec.shape.size()), spec.depth(),
      {spec.granularity, spec.mode, spec.sc_prec, args.lengths, spec.chunk_d, args.group_a,
       spec.group_b, spec.rng_levels, config, spec.halve_bipolar_stoc_len, std::nullopt});
  check_environment(op, spec, call.knobs.scramble);

  const std::vector<Part> parts = parts_of(spec.shape, call.knobs, spec.smooth);
  TORCH_CHECK_VALUE(b.size() == parts.size() || b.size() == parts.size() + 1, op,
                    ": a prepared b must be ", parts.size(), " tensors, and one of bits where it ",
                    "was expanded, got ", b.size());
  for (size_t i = 0; i < b.size(); ++i) {
    const bool bits = i == parts.size();
    const char* name = bits ? "expanded" : parts[i].name;
    const at::ScalarType dtype = bits ? at::kByte : parts[i].dtype;
    TORCH_CHECK_VALUE(b[i].scalar_type() == dtype, op, ": the prepared b's ", name, " must be ",
                      dtype, ", got ", b[i].scalar_type());
    TORCH_CHECK_VALUE(b[i].device() == b[0].device(), op, ": the prepared b's ", name,
                      " must be on the device of its codes, ", b[0].device(), ", got ",
                      b[i].device());
    TORCH_CHECK_VALUE(b[i].is_contiguous(), op, ": the prepared b's ", name, " must be contiguous");
    if (bits) {
      TORCH_CHECK_VALUE(b[i].dim() == 1, op, ": the prepared b's expanded must be 1D, got ",
                        b[i].dim(), "D");
    } else {
      TORCH_CHECK_VALUE(b[i].sizes() == at::IntArrayRef(parts[i].shape), op, ": the prepared b's ",
                        name, " must have shape ", at::IntArrayRef(parts[i].shape), ", got ",
                        b[i].sym_sizes());
    }
  }
  call.b = from_list(b);
  return call;
}

PreparedCall check_prepared(const at::Tensor& a, at::TensorList b, const PreparedArgs& args) {
  check_rank(kOp, "a", a, 2, 3);
  check_dtype(kOp, "a", a);
  PreparedCall call = check_prepared_b(kOp, b, args);
  const PreparedSpec& spec = *call.spec;
  const auto rank = static_cast<int64_t>(spec.shape.size());
  TORCH_CHECK_VALUE(a.device() == b[0].device(), kOp, ": the prepared b must be on a's device ",
                    a.device(), ", got ", b[0].device());
  TORCH_CHECK_VALUE(a.dim() == rank, kOp, ": a must be ", rank,
                    "D as the b that was prepared, got shape ", a.sym_sizes());
  TORCH_CHECK_VALUE(a.sym_size(-1) == spec.depth(), kOp,
                    ": a must have the prepared b's last size D = ", spec.depth(), ", got ",
                    a.sym_size(-1));
  TORCH_CHECK_VALUE(rank == 2 || a.sym_size(0) == spec.batches(), kOp,
                    ": a must have the prepared b's batch (first) size ", spec.batches(), ", got ",
                    a.sym_size(0));
  check_lengths_of_rows(kOp, a, args.lengths, call.knobs);
  return call;
}

at::Tensor call_prepared(const at::Tensor& a, at::TensorList b, const PreparedArgs& args) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("scmp::sc_matmul", "prepared")
                             .typed<decltype(prepared_kernel<nullptr>)>();
  const LengthArgs& l = args.lengths;
  return op.call(a, b, args.spec, args.group_a, l.stoc_len, l.row_stoc_len, l.rung_table,
                 l.level_lens);
}

void check_codes(const char* op, const at::Tensor& codes, const MatmulKnobs& knobs) {
  const int most = knobs.levels, least = knobs.unipolar ? 0 : -most;
  const int16_t* data = codes.const_data_ptr<int16_t>();
  std::atomic<bool> good{true};
  parallel_for(codes.numel(), int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    int16_t low = 0, high = 0;
    for (int64_t i = begin; i < end; ++i) {
      low = std::min(low, data[i]);
      high = std::max(high, data[i]);
    }
    if (low < least || high > most) good = false;
  });
  TORCH_CHECK_VALUE(good, op, ": the prepared b's codes must lie in [", least, ", ", most,
                    "]; it is damaged: prepare b again");
}

}  // namespace scmp
