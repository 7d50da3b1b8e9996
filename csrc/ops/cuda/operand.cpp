#include "ops/cuda/operand.h"

#include <ATen/ops/empty.h>

namespace scmp::cuda {

QuantizeArgs operand_args(const at::Tensor& x, const QuantScheme& scheme, const Grouping& grouping,
                          int levels) {
  QuantizeArgs args;
  args.source = source_of(x);
  args.scheme = scheme;
  args.rows_per_group = grouping.rows_per_group;
  args.group_kind = static_cast<int>(grouping.kind);
  args.chunk = grouping.chunk > 0 ? grouping.chunk : args.source.dim;
  args.chunks = chunk_count(args.source.dim, grouping.chunk);
  args.range_from = one_row_groups(args.source, grouping) ? RangeFrom::segment : RangeFrom::keys;
  args.levels = levels;
  if (levels > 0) {
    const BoundaryMap boundary(scheme.qmax, levels);
    args.multiplier = boundary.multiplier;
    args.bias = boundary.bias;
    args.shift = boundary.shift;
  }
  return args;
}

int64_t range_key_words(const QuantizeArgs& args) {
  if (args.range_from != RangeFrom::keys) return 0;
  const Source& s = args.source;
  int64_t groups = 1;
  if (args.group_kind == static_cast<int>(Grouping::Kind::batch)) groups = s.batches;
  if (args.group_kind == static_cast<int>(Grouping::Kind::row_groups)) {
    groups = s.batches * ((s.rows - 1) / args.rows_per_group + 1);
  }
  return groups * args.chunks * 3;
}

void Workspace::allocate(const at::Tensor& like) {
  storage_ = at::empty({static_cast<int64_t>(size_)}, like.options().dtype(at::kByte));
}

}  // namespace scmp::cuda
