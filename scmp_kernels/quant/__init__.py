"""Quantizers: floats to the integers that stochastic-computing kernels consume."""

from scmp_kernels.quant import fused, grouped, smoothquant
from scmp_kernels.quant.fused import (
    fused_quantize_bipolar,
    fused_quantize_bipolar_perrow,
    fused_quantize_unipolar,
)
from scmp_kernels.quant.grouped import (
    _grouped_asymmetric_quant,
    _grouped_symmetric_quant,
    _grouped_symmetric_quant_batched,
)
from scmp_kernels.quant.smoothquant import (
    accumulate_act_scales,
    apply_smoothing,
    apply_smoothing_offline,
    compute_smooth_scales,
)

__all__ = [
    "_grouped_asymmetric_quant",
    "_grouped_symmetric_quant",
    "_grouped_symmetric_quant_batched",
    "accumulate_act_scales",
    "apply_smoothing",
    "apply_smoothing_offline",
    "compute_smooth_scales",
    "fused",
    "fused_quantize_bipolar",
    "fused_quantize_bipolar_perrow",
    "fused_quantize_unipolar",
    "grouped",
    "smoothquant",
]
