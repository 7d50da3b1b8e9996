#include "ops/tensor_checks.h"

#include <c10/util/Exception.h>

#include "streams/rng.h"

namespace scmp {

namespace {

void check_given(const char* op, const char* argument, const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.defined(), op, ": ", argument, " must be a tensor, got None");
}

}  // namespace

void check_dtype(const char* op, const char* argument, const at::Tensor& x) {
  check_given(op, argument, x);
  const auto dtype = x.scalar_type();
  TORCH_CHECK_VALUE(
      dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat || dtype == at::kDouble,
      op, ": ", argument, " must be float16, bfloat16, float32 or float64, got ", dtype);
}

void check_rank(const char* op, const char* argument, const at::Tensor& x, int64_t least,
                int64_t most) {
  check_given(op, argument, x);
  if (least == most) {
    TORCH_CHECK_VALUE(x.dim() == least, op, ": ", argument, " must be ", least, "D, got ", x.dim(),
                      "D of shape ", x.sym_sizes());
  }
  TORCH_CHECK_VALUE(x.dim() >= least && x.dim() <= most, op, ": ", argument, " must be ", least,
                    "D or ", most, "D, got ", x.dim(), "D of shape ", x.sym_sizes());
}

void check_sc_prec(const char* op, int64_t sc_prec) {
  TORCH_CHECK_VALUE(sc_prec >= kMinPrec && sc_prec <= kMaxPrec, op, ": sc_prec must be in [",
                    kMinPrec, ", ", kMaxPrec, "], got ", sc_prec);
}

void check_level_count(const char* op, const char* argument, int64_t value, int64_t sc_prec) {
  const int64_t base = int64_t{1} << sc_prec;
  TORCH_CHECK_VALUE(value >= 1 && value <= base, op, ": ", argument, " must be in [1, ", base,
                    "] for sc_prec=", sc_prec, ", got ", value);
}

}  // namespace scmp
