#include "ops/sc_matmul.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "cache/stream_cache.h"
#include "common/error.h"
#include "ops/tensor_checks.h"
#include "ops/value_error.h"

namespace scmp {
namespace {

void check_operands(const char* op, const at::Tensor& a, const at::Tensor& b) {
  check_rank(op, "a", a, 2, 3);
  check_rank(op, "b", b, 2, 3);
  TORCH_CHECK_VALUE(a.dim() == b.dim(), op, ": a and b must have the same rank, got a of shape ",
                    a.sym_sizes(), " and b of shape ", b.sym_sizes());
  check_dtype(op, "a", a);
  check_dtype(op, "b", b);
  TORCH_CHECK_VALUE(a.device() == b.device(), op, ": b must be on a's device ", a.device(),
                    ", got ", b.device());
  if (a.dim() == 3) {
    TORCH_CHECK_VALUE(a.sym_size(0) == b.sym_size(0), op,
                      ": a and b must have the same batch (first) size, got ", a.sym_size(0),
                      " and ", b.sym_size(0));
  }
  TORCH_CHECK_VALUE(a.sym_size(-1) == b.sym_size(-1), op,
                    ": a and b must have the same last size D, got ", a.sym_size(-1), " and ",
                    b.sym_size(-1));
}

Granularity check_granularity(const char* op, int64_t rank, const MatmulArgs& args) {
  const auto& name = args.granularity;
  TORCH_CHECK_VALUE(name == "per_row" || name == "per_tensor" || name == "per_head", op,
                    ": granularity must be 'per_row', 'per_tensor' or 'per_head', got ",
                    in_quotes(name));
  TORCH_CHECK_VALUE(args.mode == "bipolar" || args.mode == "unipolar", op,
                    ": mode must be 'bipolar' or 'unipolar', got ", in_quotes(args.mode));
  if (name == "per_head") {
    TORCH_CHECK_VALUE(rank == 3, op, ": granularity 'per_head' needs 3D a and b, got ", rank, "D");
    TORCH_CHECK_VALUE(args.mode == "bipolar", op,
                      ": granularity 'per_head' needs mode 'bipolar', got ", in_quotes(args.mode));
    return Granularity::per_head;
  }
  return name == "per_row" ? Granularity::per_row : Granularity::per_tensor;
}

void check_grouping(const char* op, int64_t rank, const MatmulArgs& args, Granularity granularity) {
  TORCH_CHECK_VALUE(args.chunk_d >= 0, op, ": chunk_d must be at least 0, got ", args.chunk_d);
  if (args.chunk_d > 0) {
    TORCH_CHECK_VALUE(granularity == Granularity::per_row, op, ": chunk_d > 0 (got ", args.chunk_d,
                      ") needs granularity 'per_row', got ", in_quotes(args.granularity));
    TORCH_CHECK_VALUE(args.mode == "bipolar", op, ": chunk_d > 0 (got ", args.chunk_d,
                      ") needs mode 'bipolar', got ", in_quotes(args.mode));
    TORCH_CHECK_VALUE(rank == 2, op, ": chunk_d > 0 (got ", args.chunk_d,
                      ") needs 2D a and b, got ", rank, "D");
  }
  const std::pair<const char*, int64_t> groups[] = {{"group_a", args.group_a},
                                                    {"group_b", args.group_b}};
  for (const auto& [name, value] : groups) {
    TORCH_CHECK_VALUE(value >= 1, op, ": ", name, " must be at least 1, got ", value);
    TORCH_CHECK_VALUE(value == 1 || granularity == Granularity::per_row, op, ": ", name,
                      " must be 1 unless granularity is 'per_row', got ", value, " with ",
                      in_quotes(args.granularity));
  }
}

void check_lengths(const char* op, const MatmulArgs& args, MatmulKnobs& knobs) {
  check_sc_prec(op, args.sc_prec);
  const int64_t base = int64_t{1} << args.sc_prec;
  const bool halve = args.halve_bipolar_stoc_len && !knobs.unipolar;
  const auto resolve = [&](const char* name, const std::optional<int64_t>& value) {
    if (!value) return static_cast<int>(halve ? base / 2 : base);
    check_level_count(op, name, *value, args.sc_prec);
    TORCH_CHECK_VALUE(!halve || *value <= base / 2, op, ": ", name, " must be in [1, ", base / 2,
                      "] for sc_prec=", args.sc_prec, " with halve_bipolar_stoc_len, got ", *value);
    return static_cast<int>(*value);
  };
  knobs.sc_prec = static_cast<int>(args.sc_prec);
  knobs.length = resolve("stoc_len", args.lengths.stoc_len);
  knobs.longest = static_cast<int>(halve ? base / 2 : base);
  knobs.levels = resolve("rng_levels", args.rng_levels);
}

void check_config_fits(const char* op, const RngConfig& config, const c10::SymInt& depth,
                       int64_t chunk_d) {
  const std::pair<const char*, int64_t> lists[] = {
      {"sng.q", static_cast<int64_t>(config.a.size())},
      {"sng.k", static_cast<int64_t>(config.b.size())}};
  for (const auto& [name, entries] : lists) {
    if (chunk_d == 0) {
      TORCH_CHECK_VALUE(depth == entries, op, ": config ", name, " must have D = ", depth,
                        " entries, got ", entries);
    } else if (entries != chunk_d) {
      TORCH_CHECK_VALUE(depth == entries && depth <= chunk_d, op, ": config ", name,
                        " must have chunk_d = ", chunk_d, " entries (or D = ", depth,
                        " where D <= chunk_d), got ", entries);
    }
  }
}

void check_smooth_scales(const char* op, const char* operand, const at::Tensor& x,
                         const std::optional<at::Tensor>& scales) {
  if (!scales || !scales->defined()) return;
  TORCH_CHECK_VALUE(scales->dim() == 1 && scales->sym_size(0) == x.sym_size(-1), op,
                    ": smooth_scales must have shape (D,) = (", x.sym_size(-1), ",), got ",
                    scales->sym_sizes());
  check_dtype(op, "smooth_scales", *scales);
  TORCH_CHECK_VALUE(scales->device() == x.device(), op, ": smooth_scales must be on ", operand,
                    "'s device ", x.device(), ", got ", scales->device());
}

// b's shape, or that of what a convolution's weight lowers to.
std::vector<int64_t> lowered_shape(const char* op, at::IntArrayRef shape, const MatmulArgs& args,
                                   int64_t groups) {
  TORCH_CHECK_VALUE(groups >= 1, op, ": groups must be at least 1, got ", groups);
  TORCH_CHECK_VALUE(groups == 1 || shape.size() == 4, op,
                    ": groups must be 1 unless b is a convolution's weight (4D), got ", groups);
  if (shape.size() != 4) return shape.vec();
  const int64_t out = shape[0], columns = shape[1] * shape[2] * shape[3];
  TORCH_CHECK_VALUE(shape[2] >= 1 && shape[3] >= 1, op,
                    ": a weight's kernel must have sizes of at least 1, got ", shape);
  if (groups == 1) return {out, columns};
  TORCH_CHECK_VALUE(out % groups == 0, op,
                    ": a weight's Cout must be a multiple of groups = ", groups, ", got ", out);
  TORCH_CHECK_VALUE(args.granularity == "per_row", op,
                    ": a weight with groups > 1 needs granularity 'per_row', got ",
                    in_quotes(args.granularity));
  TORCH_CHECK_VALUE(!args.smooth_scales, op,
                    ": smooth_scales must be None for a weight with groups > 1, got a tensor");
  TORCH_CHECK_VALUE(args.chunk_d == 0, op, ": chunk_d must be 0 for a weight with groups > 1, got ",
                    args.chunk_d);
  return {groups, out / groups, columns};
}

}  // namespace

at::Tensor call_sc_matmul(const at::Tensor& a, const at::Tensor& b, const MatmulArgs& args) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("scmp::sc_matmul", "")
                             .typed<decltype(sc_matmul_kernel<nullptr>)>();
  const LengthArgs& l = args.lengths;
  return op.call(a, b, args.granularity, args.mode, args.sc_prec, l.stoc_len, args.chunk_d,
                 args.group_a, args.group_b, args.rng_levels, args.config,
                 args.halve_bipolar_stoc_len, args.smooth_scales, l.row_stoc_len, l.rung_table,
                 l.level_lens);
}

at::Tensor make_output(const at::Tensor& a, int64_t columns, bool zeroed) {
  auto shape = a.sizes().vec();
  const int64_t depth = shape.back();
  shape.back() = columns;
  const auto options = a.options().dtype(at::kFloat);
  return zeroed || depth == 0 ? at::zeros(shape, options) : at::empty(shape, options);
}

MatmulKnobs check_matmul_knobs(const char* op, int64_t rank, const c10::SymInt& depth,
                               const MatmulArgs& args) {
  MatmulKnobs knobs;
  knobs.scramble = with_value_errors(op, [] { return read_environment(); });
  knobs.sync_checks = with_value_errors(op, [] { return read_sync_checks(); });
  knobs.granularity = check_granularity(op, rank, args);
  knobs.unipolar = args.mode == "unipolar";
  check_grouping(op, rank, args, knobs.granularity);
  check_lengths(op, args, knobs);
  knobs.by_row = false;
  knobs.chunk_d = args.chunk_d;
  knobs.group_a = args.group_a;
  knobs.group_b = args.group_b;
  if (args.config) {
    knobs.config = with_value_errors(op, [&] {
      auto config = resolve_config(std::string(*args.config));
      check_config(*config, knobs.sc_prec);
      return config;
    });
    check_config_fits(op, *knobs.config, depth, args.chunk_d);
  }
  return knobs;
}

MatmulKnobs check_sc_matmul(const char* op, const at::Tensor& a, const at::Tensor& b,
                            const MatmulArgs& args) {
  check_operands(op, a, b);
  MatmulKnobs knobs = check_matmul_knobs(op, a.dim(), a.sym_size(-1), args);
  check_smooth_scales(op, "a", a, args.smooth_scales);
  check_lengths_of_rows(op, a, args.lengths, knobs);
  return knobs;
}

void check_lengths_of_rows(const char* op, const at::Tensor& a, const LengthArgs& lengths,
                           MatmulKnobs& knobs) {
  if (!lengths.by_row() && !lengths.level_lens) return;
  const char* forms = "lengths by row (row_stoc_len, rung_table)";
  TORCH_CHECK_VALUE(knobs.granularity == Granularity::per_row, op, ": ", forms,
                    " need granularity 'per_row', got '",
                    knobs.granularity == Granularity::per_head ? "per_head" : "per_tensor", "'");
  TORCH_CHECK_VALUE(!knobs.unipolar, op, ": ", forms, " need mode 'bipolar', got 'unipolar'");
  check_row_lengths(op, a, lengths, knobs.chunk_d, knobs.longest);
  knobs.by_row = true;
  knobs.length = knobs.longest;
  if (lengths.level_lens) {
    const auto& levels = *lengths.level_lens;
    knobs.length =
        std::max<int>(1, static_cast<int>(*std::max_element(levels.begin(), levels.end())));
  }
}

MatmulKnobs check_prepare(const char* op, const at::Tensor& b, const MatmulArgs& args) {
  check_rank(op, "b", b, 2, 3);
  check_dtype(op, "b", b);
  TORCH_CHECK_VALUE(!at::GradMode::is_enabled() || !b.requires_grad(), op,
                    ": b must not require grad (a prepared operand has no gradient): pass "
                    "b.detach() or use torch.no_grad()");
  const MatmulKnobs knobs = check_matmul_knobs(op, b.dim(), b.sym_size(-1), args);
  check_smooth_scales(op, "b", b, args.smooth_scales);
  return knobs;
}

at::Tensor lowered_weight(const char* op, const at::Tensor& b, const MatmulArgs& args,
                          int64_t groups) {
  const std::vector<int64_t> shape = lowered_shape(op, b.sizes(), args, groups);
  return b.dim() == 4 ? b.reshape(shape) : b;
}

std::string prepare_spec(at::IntArrayRef given, const MatmulArgs& args, int64_t groups) {
  const char* op = "prepare_spec";
  TORCH_CHECK_VALUE(given.size() >= 2 && given.size() <= 4, op,
                    ": shape must be 2D or 3D, (M, D) or (B, M, D), or 4D of a convolution's "
                    "weight, got ",
                    given);
  for (int64_t size : given) {
    TORCH_CHECK_VALUE(size >= 0, op, ": shape must hold sizes of at least 0, got ", given);
  }
  const std::vector<int64_t> shape = lowered_shape(op, given, args, groups);
  const MatmulKnobs knobs =
      check_matmul_knobs(op, static_cast<int64_t>(shape.size()), shape.back(), args);
  PreparedSpec spec;
  spec.shape = shape;
  if (given.size() == 4) spec.kernel = {given[2], given[3]};
  spec.granularity = args.granularity;
  spec.mode = args.mode;
  spec.sc_prec = args.sc_prec;
  spec.chunk_d = args.chunk_d;
  spec.group_b = args.group_b;
  spec.rng_levels = args.rng_levels;
  if (args.config) {
    spec.config = with_value_errors(op, [&] { return config_text(std::string(*args.config)); });
  }
  spec.halve_bipolar_stoc_len = args.halve_bipolar_stoc_len;
  spec.smooth = args.smooth_scales && args.smooth_scales->defined();
  if (spec.smooth) {
    TORCH_CHECK_VALUE(args.smooth_scales->dim() == 1 && args.smooth_scales->size(0) == shape.back(),
                      op, ": smooth_scales must have shape (D,) = (", shape.back(), ",), got ",
                      args.smooth_scales->sizes());
  }
  spec.scramble = knobs.scramble;
  return write_prepared_spec(spec);
}

MatmulPlan plan_sc_matmul(const MatmulKnobs& knobs, int64_t depth) {
  MatmulPlan plan;
  plan.chunked = knobs.chunk_d > 0 && depth > knobs.chunk_d;
  plan.chunk = plan.chunked ? knobs.chunk_d : depth;
  plan.chunks = plan.chunked ? (depth + plan.chunk - 1) / plan.chunk : 1;
  plan.streams.sc_prec = knobs.sc_prec;
  plan.streams.length = knobs.length;
  plan.streams.levels = knobs.levels;
  plan.streams.positions = plan.chunk;
  plan.streams.scramble = knobs.scramble;
  plan.streams.config = knobs.config;
  plan.scheme.unipolar = knobs.unipolar;
  plan.scheme.qmax = knobs.qmax();
  Grouping grouping;
  switch (knobs.granularity) {
    case Granularity::per_row:
      plan.scheme.rounding = plan.chunked ? Rounding::multiply : Rounding::divide;
      grouping.kind = Grouping::Kind::row_groups;
      break;
    case Granularity::per_head:
      plan.scheme.rounding = Rounding::multiply;
      grouping.kind = Grouping::Kind::batch;
      break;
    case Granularity::per_tensor:
      plan.scheme.rounding = Rounding::tensor;
      grouping.kind = Grouping::Kind::tensor;
      break;
  }
  grouping.chunk = plan.chunked ? plan.chunk : 0;
  plan.a_grouping = plan.b_grouping = grouping;
  plan.a_grouping.rows_per_group = knobs.group_a;
  plan.b_grouping.rows_per_group = knobs.group_b;
  return plan;
}

Dequantizer make_dequantizer(const MatmulKnobs& knobs, const MatmulPlan& plan, int64_t depth) {
  Dequantizer q;
  switch (knobs.granularity) {
    case Granularity::per_tensor:
      q.kind = knobs.unipolar ? Epilogue::unipolar_tensor : Epilogue::tensor;
      break;
    case Granularity::per_head:
      q.kind = Epilogue::head;
      break;
    case Granularity::per_row:
      if (knobs.unipolar) {
        q.kind = Epilogue::unipolar_row;
      } else if (knobs.by_row) {
        q.kind = plan.chunked ? Epilogue::chunk_own_c : Epilogue::row_own_c;
      } else {
        q.kind = plan.chunked ? Epilogue::chunk : Epilogue::row;
      }
      break;
  }
  const float qmax = static_cast<float>(plan.scheme.qmax);
  q.qmax_squared = f32_mul(qmax, qmax);
  q.c = length_factor(q.qmax_squared, knobs.length);
  q.depth = static_cast<float>(depth);
  q.chunks = plan.chunks;
  return q;
}

}  // namespace scmp
