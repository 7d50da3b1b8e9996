"""Row-group quantizers: every ``g`` consecutive rows share a range.

The levels are returned as float32; each row carries its group's scale; the last group may be short.
A group that holds NaN or Inf gives q = 0 and a NaN scale (and zero point).
"""

import torch

from scmp_kernels.sc.rng import one_line


def _require_rank(name: str, x: torch.Tensor, rank: int) -> None:
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{name}: x must be a tensor, got {one_line(x)}")
    if x.dim() != rank:
        raise ValueError(f"{name}: x must be {rank}D, got {x.dim()}D of shape {tuple(x.shape)}")


def _grouped_symmetric_quant(
    x: torch.Tensor, g: int, qmax: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Symmetric levels ``clamp(rint(x / scale), -qmax, qmax)``, scale = max|x| / qmax.

    Args:
        x: (R, C) float16, bfloat16, float32 or float64.
        g: rows per group, >= 1.
        qmax: largest level, >= 1.

    Returns:
        scale (R,) float32, q (R, C) float32, sign (R, C) int8 (0 counts as +1).

    Raises:
        ValueError: an argument does not fit.
    """
    _require_rank("_grouped_symmetric_quant", x, 2)
    return torch.ops.scmp.grouped_symmetric_quant.default(x, g, qmax)


def _grouped_symmetric_quant_batched(
    x: torch.Tensor, g: int, qmax: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """:func:`_grouped_symmetric_quant` per batch entry; a group never crosses a batch.

    Args:
        x: (B, R, C).
        g: rows per group, >= 1.
        qmax: largest level, >= 1.

    Returns:
        scale (B, R) float32, q (B, R, C) float32, sign (B, R, C) int8.

    Raises:
        ValueError: an argument does not fit.
    """
    _require_rank("_grouped_symmetric_quant_batched", x, 3)
    return torch.ops.scmp.grouped_symmetric_quant.default(x, g, qmax)


def _grouped_asymmetric_quant(
    x: torch.Tensor, g: int, qmax: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Asymmetric levels ``clamp(rint(x / scale + zp), 0, qmax)``, scale = (max - min) / qmax.

    Args:
        x: (R, C) float16, bfloat16, float32 or float64.
        g: rows per group, >= 1.
        qmax: largest level, >= 1.

    Returns:
        scale (R,), zero point (R,), q (R, C), all float32.

    Raises:
        ValueError: an argument does not fit.
    """
    _require_rank("_grouped_asymmetric_quant", x, 2)
    return torch.ops.scmp.grouped_asymmetric_quant.default(x, g, qmax)
