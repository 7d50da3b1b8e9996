// Streams whose lengths differ by row, or by row and chunk: how a call gives them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>

#include <optional>

#include "common/buffer.h"

namespace scmp {

/// The arguments of an operator that say how long its streams are.
struct LengthArgs {
  std::optional<int64_t> stoc_len;         // of every row; beside a rung table: the most
  std::optional<at::Tensor> row_stoc_len;  // (N,), (B, N) or (N, chunks)
  std::optional<at::Tensor> rung_table;    // (N, chunks): indices into level_lens
  at::OptionalIntArrayRef level_lens;

  bool by_row() const { return row_stoc_len || rung_table; }
};

/// An optional tensor argument: empty where it holds no tensor.
inline std::optional<at::Tensor> present(const std::optional<at::Tensor>& x) {
  return x && x->defined() ? x : std::nullopt;
}

/// The arguments as the operators' kernels get them.
inline LengthArgs length_args(std::optional<int64_t> stoc_len,
                              const std::optional<at::Tensor>& row_stoc_len,
                              const std::optional<at::Tensor>& rung_table,
                              at::OptionalIntArrayRef level_lens) {
  return {stoc_len, present(row_stoc_len), present(rung_table), level_lens};
}

/// Raises ValueError where forms are mixed, or types, shapes or levels do not fit operand a.
/// Lengths lie in 0..limit. What can be known without the tensors' values.
void check_row_lengths(const char* op, const at::Tensor& a, const LengthArgs& lengths,
                       int64_t chunk_d, int64_t limit);

/// Lengths by row and chunk, (rows, chunks), on the host (a CUDA tensor is copied, which syncs);
/// ValueError for values out of range.
Buffer<int16_t> host_row_lengths(const char* op, const LengthArgs& lengths, int64_t rows,
                                 int64_t chunks, int64_t limit);

/// Where operand a of this shape counts: bool that broadcasts to a, false where a length is 0.
at::Tensor counted_elements(c10::SymIntArrayRef shape, const LengthArgs& lengths, int64_t chunk_d);

}  // namespace scmp
