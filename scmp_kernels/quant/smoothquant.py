"""SmoothQuant: moving the range of activations into the weights, channel by channel.

A layer computes ``(x / s) @ (w * s).T`` for scales ``s`` that balance the largest magnitudes of its
activations and its weights; `scmp_kernels.sc_matmul` takes them as ``smooth_scales``.
Source: Xiao et al., SmoothQuant, ICML 2023.
"""

import torch


def accumulate_act_scales(x: torch.Tensor, running: torch.Tensor | None = None) -> torch.Tensor:
    """Return the largest magnitude of every channel so far.

    Args:
        x: (..., D) float16, bfloat16, float32 or float64.
        running: (D,) result of earlier batches, x's dtype and device; None: there were none.

    Returns:
        (D,) x's dtype and device; NaN where a channel has seen one, 0 where nothing was seen.

    Raises:
        ValueError: a shape, dtype or device does not fit.
    """
    return torch.ops.scmp.accumulate_act_scales(x, running)


def compute_smooth_scales(
    act: torch.Tensor, weight: torch.Tensor, alpha: float = 0.5, eps: float = 1e-5
) -> torch.Tensor:
    """Return ``max(a**alpha / w**(1 - alpha), eps)`` per channel, computed in double.

    Args:
        act: (D,) largest magnitudes of the activations (`accumulate_act_scales`).
        weight: (M, D), same device.
        alpha: how much of the range moves into the weights, in [0, 1].
        eps: positive; what magnitudes and scales are at least.

    Returns:
        (D,) float32. Devices may differ by one unit in the last place.

    Raises:
        ValueError: an argument is out of range, or a shape, dtype or device does not fit.
    """
    return torch.ops.scmp.compute_smooth_scales(act, weight, alpha, eps)


def apply_smoothing(
    a: torch.Tensor, b: torch.Tensor, s: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(a / s, b * s)``, each in its operand's dtype, `s` cast to it. Differentiable.

    Args:
        a, b: (..., D).
        s: (D,), same device.

    Raises:
        ValueError: a shape, dtype or device does not fit.
    """
    return torch.ops.scmp.apply_smoothing(a, b, s)


def apply_smoothing_offline(weight: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Return ``weight * s`` in weight's dtype, `s` cast to it. Differentiable.

    Args:
        weight: (..., D).
        s: (D,), same device.

    Raises:
        ValueError: a shape, dtype or device does not fit.
    """
    return torch.ops.scmp.apply_smoothing_offline(weight, s)
