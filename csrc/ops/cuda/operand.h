// at::Tensor operands as quantize arguments, and a bump allocator over one workspace tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/cpu/tensor_source.h"
#include "quant/cuda/quantize.h"
#include "quant/quantize.h"

namespace scmp::cuda {

/// Source, scheme, grouping and boundary map; outputs are the caller's.
QuantizeArgs operand_args(const at::Tensor& x, const QuantScheme& scheme, const Grouping& grouping,
                          int levels);

/// Aligned parts of one allocation: reserve everything, allocate once, then take pointers.
class Workspace {
 public:
  size_t reserve(size_t bytes) {
    const size_t offset = size_;
    size_ += (bytes + 255) / 256 * 256;
    return offset;
  }
  void allocate(const at::Tensor& like);
  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(storage_.mutable_data_ptr()) + offset);
  }

 private:
  at::Tensor storage_;
  size_t size_ = 0;
};

/// The ranges of groups that span segments, and the launches around them.
class RangeKeys {
 public:
  /// Reserves keys for those operands that need them.
  RangeKeys(Workspace& workspace, const QuantizeArgs* operands, int count);
  /// Finds the ranges where there are keys, then quantizes, on the current stream.
  void quantize(const Workspace& workspace, QuantizeArgs* operands, int count) const;
  bool any() const { return bytes_ > 0; }

 private:
  size_t first_ = 0, bytes_ = 0;
  size_t offsets_[2] = {};
};

}  // namespace scmp::cuda
