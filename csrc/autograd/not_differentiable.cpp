// Operators without a gradient: asking for one raises instead of silently giving none.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(scmp, Autograd, m) {
  for (const char* op :
       {"fused_quantize_bipolar", "fused_quantize_bipolar_perrow", "fused_quantize_unipolar",
        "grouped_symmetric_quant", "grouped_asymmetric_quant", "prepare", "expand_prepared",
        "compute_row_metric", "classify_rows_by_metric", "adaptive_classify_rows",
        "classify_groups_by_range"}) {
    m.impl(op, torch::autograd::autogradNotImplementedFallback());
  }
}
