#include "ops/row_lengths.h"

#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace scmp {
namespace {

void check_integers(const char* op, const char* name, const at::Tensor& x, const at::Tensor& a) {
  TORCH_CHECK_VALUE(
      at::isIntegralType(x.scalar_type(), /*includeBool=*/false) && x.scalar_type() != at::kUInt64,
      op, ": ", name, " must hold integers (int8 to int64, uint8 to uint32), got ",
      x.scalar_type());
  TORCH_CHECK_VALUE(x.device() == a.device(), op, ": ", name, " must be on a's device ", a.device(),
                    ", got ", x.device());
}

c10::SymInt chunks_of(const c10::SymInt& depth, int64_t chunk_d) {
  return c10::SymInt((depth - 1) / chunk_d + 1).max(1);  // no overflow; 1 where D is 0
}

bool has_shape(const at::Tensor& x, const c10::SymInt& rows, const c10::SymInt& columns) {
  return x.dim() == 2 && x.sym_size(0) == rows && x.sym_size(1) == columns;
}

}  // namespace

void check_row_lengths(const char* op, const at::Tensor& a, const LengthArgs& lengths,
                       int64_t chunk_d, int64_t limit) {
  const bool levels = lengths.level_lens.has_value();
  TORCH_CHECK_VALUE(!lengths.row_stoc_len || !lengths.rung_table, op,
                    ": row_stoc_len (a tensor stoc_len) and rung_table exclude each other, "
                    "got both");
  TORCH_CHECK_VALUE(lengths.rung_table.has_value() == levels, op,
                    ": rung_table and level_lens need each other, got ",
                    levels ? "level_lens" : "rung_table", " alone");
  if (lengths.row_stoc_len) {
    const at::Tensor& x = *lengths.row_stoc_len;
    const char* name = "row_stoc_len";
    TORCH_CHECK_VALUE(!lengths.stoc_len, op,
                      ": stoc_len must be left out beside row_stoc_len, got ", *lengths.stoc_len);
    check_integers(op, name, x, a);
    if (a.dim() == 3) {
      TORCH_CHECK_VALUE(has_shape(x, a.sym_size(0), a.sym_size(1)), op, ": ", name,
                        " must have shape (B, N) = (", a.sym_size(0), ", ", a.sym_size(1),
                        ") for 3D a, got ", x.sym_sizes());
    } else if (chunk_d > 0) {
      TORCH_CHECK_VALUE((x.dim() == 1 && x.sym_size(0) == a.sym_size(0)) ||
                            has_shape(x, a.sym_size(0), chunks_of(a.sym_size(-1), chunk_d)),
                        op, ": ", name, " must have shape (N,) = (", a.sym_size(0),
                        ",) or (N, chunks) = (", a.sym_size(0), ", ",
                        chunks_of(a.sym_size(-1), chunk_d), "), got ", x.sym_sizes());
    } else {
      TORCH_CHECK_VALUE(x.dim() == 1 && x.sym_size(0) == a.sym_size(0), op, ": ", name,
                        " must have shape (N,) = (", a.sym_size(0),
                        ",), or (N, chunks) with chunk_d, got ", x.sym_sizes());
    }
  }
  if (lengths.rung_table) {
    const at::Tensor& x = *lengths.rung_table;
    TORCH_CHECK_VALUE(a.dim() == 2 && chunk_d > 0, op,
                      ": rung_table needs 2D a and b and chunk_d > 0, got ", a.dim(),
                      "D and chunk_d ", chunk_d);
    check_integers(op, "rung_table", x, a);
    TORCH_CHECK_VALUE(has_shape(x, a.sym_size(0), chunks_of(a.sym_size(-1), chunk_d)), op,
                      ": rung_table must have shape (N, chunks) = (", a.sym_size(0), ", ",
                      chunks_of(a.sym_size(-1), chunk_d), "), got ", x.sym_sizes());
    TORCH_CHECK_VALUE(!lengths.level_lens->empty(), op,
                      ": level_lens must hold at least one length, got none");
    for (int64_t length : *lengths.level_lens) {
      TORCH_CHECK_VALUE(length >= 0 && length <= limit, op, ": level_lens must lie in [0, ", limit,
                        "], got ", length);
      TORCH_CHECK_VALUE(!lengths.stoc_len || length <= *lengths.stoc_len, op,
                        ": level_lens must be at most stoc_len = ", *lengths.stoc_len, ", got ",
                        length);
    }
  }
}

Buffer<int16_t> host_row_lengths(const char* op, const LengthArgs& lengths, int64_t rows,
                                 int64_t chunks, int64_t limit) {
  const bool rungs = lengths.rung_table.has_value();
  const at::Tensor given =
      (rungs ? *lengths.rung_table : *lengths.row_stoc_len).to(at::kCPU, at::kLong).contiguous();
  const int64_t* values = given.const_data_ptr<int64_t>();
  const int64_t most = rungs ? static_cast<int64_t>(lengths.level_lens->size()) - 1 : limit;
  const int64_t per_length = given.numel() == rows ? chunks : 1;  // chunks that share a length
  Buffer<int16_t> out(rows * chunks);
  for (int64_t i = 0; i < rows * chunks; ++i) {
    const int64_t value = values[i / per_length];
    TORCH_CHECK_VALUE(value >= 0 && value <= most, op, ": ", rungs ? "rung_table" : "row_stoc_len",
                      " must lie in [0, ", most, "], got ", value, " at row ", i / chunks);
    out[i] = static_cast<int16_t>(rungs ? (*lengths.level_lens)[value] : value);
  }
  return out;
}

at::Tensor counted_elements(c10::SymIntArrayRef shape, const LengthArgs& lengths, int64_t chunk_d) {
  at::Tensor counted;
  if (lengths.row_stoc_len) {
    counted = lengths.row_stoc_len->to(at::kLong).gt(0);
    if (shape.size() == 3 || counted.dim() == 1) return counted.unsqueeze(-1);
  } else {
    const at::Tensor rungs = lengths.rung_table->to(at::kLong);
    counted = at::zeros_like(rungs, at::TensorOptions().dtype(at::kBool));
    for (size_t i = 0; i < lengths.level_lens->size(); ++i) {
      if ((*lengths.level_lens)[i] > 0) {
        counted = counted.logical_or(rungs.eq(static_cast<int64_t>(i)));
      }
    }
  }
  // One chunk is as wide as it needs to be.
  if (chunks_of(shape[1], chunk_d) == 1) return counted.expand_symint(shape);
  return at::repeat_interleave(counted, chunk_d, 1).slice_symint(1, 0, shape[1]);
}

}  // namespace scmp
