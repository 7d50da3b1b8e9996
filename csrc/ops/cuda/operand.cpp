#include "ops/cuda/operand.h"

#include <ATen/cuda/CUDAContext.h>
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

namespace {

int64_t range_key_bytes(const QuantizeArgs& args) {
  if (args.range_from != RangeFrom::keys) return 0;
  const Source& s = args.source;
  int64_t groups = 1;
  if (args.group_kind == static_cast<int>(Grouping::Kind::batch)) groups = s.batches;
  if (args.group_kind == static_cast<int>(Grouping::Kind::row_groups)) {
    groups = s.batches * ((s.rows - 1) / args.rows_per_group + 1);
  }
  return groups * args.chunks * 3 * static_cast<int64_t>(sizeof(uint32_t));
}

}  // namespace

RangeKeys::RangeKeys(Workspace& workspace, const QuantizeArgs* operands, int count) {
  for (int i = 0; i < count; ++i) {
    offsets_[i] = bytes_;
    bytes_ += range_key_bytes(operands[i]);
  }
  first_ = workspace.reserve(bytes_);
}

void RangeKeys::quantize(const Workspace& workspace, QuantizeArgs* operands, int count) const {
  const cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  if (any()) {
    char* keys = workspace.at<char>(first_);
    C10_CUDA_CHECK(cudaMemsetAsync(keys, 0, bytes_, stream));
    for (int i = 0; i < count; ++i) {
      operands[i].range_keys = reinterpret_cast<uint32_t*>(keys + offsets_[i]);
    }
    find_ranges(operands, count, stream);
  }
  cuda::quantize(operands, count, stream);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void Workspace::allocate(const at::Tensor& like) {
  storage_ = at::empty({static_cast<int64_t>(size_)}, like.options().dtype(at::kByte));
}

}  // namespace scmp::cuda
