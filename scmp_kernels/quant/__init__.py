"""Quantizers: floats to the integers that stochastic-computing kernels consume."""

from scmp_kernels.quant import fused, grouped
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

__all__ = [
    "_grouped_asymmetric_quant",
    "_grouped_symmetric_quant",
    "_grouped_symmetric_quant_batched",
    "fused",
    "fused_quantize_bipolar",
    "fused_quantize_bipolar_perrow",
    "fused_quantize_unipolar",
    "grouped",
]
