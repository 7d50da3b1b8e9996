"""Per-tensor and per-row quantizers to stream codes ("boundaries").

A level q becomes the code ``(2 * q * G + qmax) // (2 * qmax)`` on the grid ``G = rng_levels``.
All of them take x (R, C) in float16, bfloat16, float32 or float64, and raise ValueError for
arguments that do not fit.
"""

from typing import Any

import torch

from scmp_kernels.sc.rng import one_line

_RANGE_FLOOR = 1e-5  # the smallest range a scale is made from


def _as_float(op: str, name: str, value: Any) -> float:
    """A number, or a tensor of one, as a float; text is none."""
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass
    raise ValueError(
        f"{op}: {name} must be a number in the range of a double, got {one_line(value)}"
    )


def fused_quantize_bipolar(
    x: torch.Tensor, abs_max: float, sc_prec: int, rng_levels: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Quantize x to the range [-abs_max, abs_max], qmax = 2**(sc_prec-1) - 1.

    Args:
        x: (R, C).
        abs_max: range, finite and >= 0.
        sc_prec: bits, 2 to 12.
        rng_levels: grid G, default ``2**sc_prec``.

    Returns:
        boundary (R, C) int16, sign (R, C) int8 in {-1, 0, 1}, scale (units of x per level). NaN and
        Inf elements give 0 and 0.
    """
    abs_max = _as_float("fused_quantize_bipolar", "abs_max", abs_max)
    boundary, sign = torch.ops.scmp.fused_quantize_bipolar.default(x, abs_max, sc_prec, rng_levels)
    return boundary, sign, max(abs_max, _RANGE_FLOOR) / (2 ** (int(sc_prec) - 1) - 1)


def fused_quantize_bipolar_perrow(
    x: torch.Tensor, sc_prec: int, rng_levels: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantize every row of x to its own max-abs range.

    Args:
        x: (R, C).
        sc_prec: bits, 2 to 12.
        rng_levels: grid G, default ``2**sc_prec``.

    Returns:
        boundary (R, C) int16, sign (R, C) int8 in {-1, 0, 1}, scale (R,) float32. A row that holds
        NaN or Inf gives zeros and a NaN scale.
    """
    return torch.ops.scmp.fused_quantize_bipolar_perrow.default(x, sc_prec, rng_levels)


def fused_quantize_unipolar(
    x: torch.Tensor,
    fp_max: float,
    fp_min: float,
    sc_prec: int,
    compute_sum: bool = False,
    rng_levels: int | None = None,
) -> tuple[torch.Tensor, float, float, torch.Tensor | None]:
    """Quantize x to the range [fp_min, fp_max] with a zero point, qmax = 2**sc_prec - 1.

    Args:
        x: (R, C).
        fp_max: upper end of the range, finite.
        fp_min: lower end, at most ``fp_max``.
        sc_prec: bits, 2 to 12.
        compute_sum: also return the sum of levels of every row.
        rng_levels: grid G, default ``2**sc_prec``.

    Returns:
        boundary (R, C) int32, scale, zero point, row_sum (R,) float32 or None. NaN and Inf elements
        give level 0.
    """
    fp_max = _as_float("fused_quantize_unipolar", "fp_max", fp_max)
    fp_min = _as_float("fused_quantize_unipolar", "fp_min", fp_min)
    boundary, row_sum = torch.ops.scmp.fused_quantize_unipolar.default(
        x, fp_max, fp_min, sc_prec, compute_sum, rng_levels
    )
    qmax = 2 ** int(sc_prec) - 1
    scale = max(fp_max - fp_min, _RANGE_FLOOR) / qmax
    zero_point = float(round(min(max(-fp_min / scale, 0), qmax)))
    return boundary, scale, zero_point, row_sum
