#include "quant/rows.h"

namespace scmp {

const RowKernels& row_kernels(Isa isa) {
#if defined(SCMP_X86)
  if (isa == Isa::avx512) return avx512::kRowKernels;
  if (isa == Isa::avx2) return avx2::kRowKernels;
#endif
  return scalar::kRowKernels;
}

}  // namespace scmp
