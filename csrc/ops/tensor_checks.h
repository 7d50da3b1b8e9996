// Checks shared by the operators. Sizes stay symbolic, so the Meta kernels use them too.
#pragma once

#include <ATen/core/Tensor.h>

namespace scmp {

/// float16, bfloat16, float32 or float64.
void check_dtype(const char* op, const char* argument, const at::Tensor& x);
void check_rank(const char* op, const char* argument, const at::Tensor& x, int64_t least,
                int64_t most);
void check_sc_prec(const char* op, int64_t sc_prec);
void check_level_count(const char* op, const char* argument, int64_t value, int64_t sc_prec);

}  // namespace scmp
