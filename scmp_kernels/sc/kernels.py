"""The quantizers under their historical address, and the RNG cache."""

from scmp_kernels import _C
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
    "clear_rng_cache",
    "fused_quantize_bipolar",
    "fused_quantize_bipolar_perrow",
    "fused_quantize_unipolar",
]


def clear_rng_cache() -> None:
    """Drop all cached RNG sequences and count tables.

    Never needed for correctness: environment variables and configs are part of every cache key.
    Configs made by ``scmp_kernels.sc.config_helpers`` stay usable.
    """
    _C.clear_rng_cache()
