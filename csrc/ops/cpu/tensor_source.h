// at::Tensor to the core's view of an operand; at::parallel_for as the core's ParallelFor.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "common/parallel.h"
#include "quant/source.h"

namespace scmp {

inline DType dtype_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kHalf:
      return DType::float16;
    case at::kBFloat16:
      return DType::bfloat16;
    case at::kDouble:
      return DType::float64;
    default:
      return DType::float32;
  }
}

/// A 2D or 3D tensor as (batches, rows, dim).
inline Source source_of(const at::Tensor& x) {
  Source source;
  source.data = x.const_data_ptr();
  source.dtype = dtype_of(x);
  const bool batched = x.dim() == 3;
  source.batches = batched ? x.size(0) : 1;
  source.batch_stride = batched ? x.stride(0) : 0;
  source.rows = x.size(-2);
  source.row_stride = x.stride(-2);
  source.dim = x.size(-1);
  source.dim_stride = x.stride(-1);
  return source;
}

inline void parallel_for(int64_t count, int64_t grain, const RangeFn& body) {
  if (count <= grain) return serial_for(count, grain, body);
  at::parallel_for(0, count, grain, body);
}

}  // namespace scmp
