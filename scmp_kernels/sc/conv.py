"""Stochastic-computing convolution."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scmp_kernels.sc.config import config_argument
from scmp_kernels.sc.lengths import length_arguments, longest_stream
from scmp_kernels.sc.prepared import Prepared
from scmp_kernels.sc.rng import one_line

_Size = int | Sequence[int]


def sc_conv2d(
    x: torch.Tensor,
    weight: torch.Tensor | Prepared,
    bias: torch.Tensor | None = None,
    *,
    stride: _Size = 1,
    padding: _Size | str = 0,
    dilation: _Size = 1,
    groups: int = 1,
    granularity: str = "per_row",
    mode: str = "bipolar",
    sc_prec: int = 8,
    stoc_len: int | torch.Tensor | None = None,
    chunk_d: int = 0,
    group_a: int = 1,
    group_b: int = 1,
    rng_levels: int | None = None,
    config: Mapping[str, Any] | str | None = None,
    halve_bipolar_stoc_len: bool = False,
    smooth_scales: torch.Tensor | None = None,
    rung_table: torch.Tensor | None = None,
    level_lens: Sequence[int] | None = None,
) -> torch.Tensor:
    """``conv2d(x, weight, bias)`` computed by stochastic-computing multipliers, bit for bit.

    It equals `sc_matmul` on the lowered input: rows are output positions in (batch, y, x) order,
    columns (channel, ky, kx). With groups there is one such product per group of channels; a
    depthwise convolution (groups = Cin = Cout > 1) is one 3D product of batch B * Cin.

    Args:
        x: (B, Cin, H, W) or (Cin, H, W), float16, bfloat16, float32 or float64.
        weight: (Cout, Cin / groups, kh, kw); or what `scmp_kernels.prepare` made of it: then knobs
            (and groups) left at their defaults are those that it was made for, others must be equal
            to them; ``group_a`` and the lengths are free.
        bias: (Cout,), added in float32; dtypes may differ.
        stride, dilation: int or pair.
        padding: int or pair of zeros around x, ``"same"`` (stride 1) or ``"valid"``.
        groups: groups of channels.
        granularity, mode, sc_prec, stoc_len, chunk_d, group_a, group_b, rng_levels, config,
            halve_bipolar_stoc_len, rung_table, level_lens: as in `sc_matmul`, of each group's
            product, whose rows are the B * Hout * Wout output positions: lengths by row are the
            same for all groups and channels. A depthwise convolution needs granularity "per_row",
            chunk_d at least kh * kw where it is not 0, and takes no rung_table.
        smooth_scales: (Cin * kh * kw,) positive, a slice per group.

    Returns:
        (B, Cout, Hout, Wout) or (Cout, Hout, Wout) in x's dtype and memory format. Differentiable
        straight through: as the convolution.

    Raises:
        ValueError: an argument, the config or an environment variable does not fit; the text names
            it, what is allowed and what came.
    """
    op: Any = torch.ops.scmp.sc_conv2d
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    knobs = {
        "granularity": granularity,
        "mode": mode,
        "sc_prec": sc_prec,
        "chunk_d": chunk_d,
        "group_b": group_b,
        "rng_levels": rng_levels,
        "config": config,
        "halve_bipolar_stoc_len": halve_bipolar_stoc_len,
        "groups": groups,
    }
    if isinstance(weight, Prepared):
        weight.check_knobs("sc_conv2d", knobs, smooth_scales)
        longest = weight.longest_stream()
    else:
        longest = longest_stream(sc_prec, mode, halve_bipolar_stoc_len)
    lengths = length_arguments("sc_conv2d", x, stoc_len, rung_table, level_lens, longest)
    if isinstance(weight, Prepared):
        op = op.prepared_padding if isinstance(padding, str) else op.prepared
        return op(
            x,
            weight.tensors,
            weight.call_spec(),
            bias,
            group_a=group_a,
            **geometry,
            **lengths,
        )
    knobs["config"] = None if config is None else config_argument(config)
    return (op.padding if isinstance(padding, str) else op.default)(
        x,
        weight,
        bias,
        group_a=group_a,
        smooth_scales=smooth_scales,
        **geometry,
        **knobs,
        **lengths,
    )


def conv2d_lowered_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    stride: _Size = 1,
    padding: _Size | str = 0,
    dilation: _Size = 1,
    groups: int = 1,
) -> torch.Tensor | None:
    """Return the matrix that `sc_conv2d` multiplies with the weights, for calibration.

    Args:
        x, weight, stride, padding, dilation, groups: as in `sc_conv2d`.

    Returns:
        (B * Hout * Wout, Cin * kh * kw) float32; None where groups > 1.

    Raises:
        ValueError: the geometry does not fit.
    """
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(
            f"conv2d_lowered_rows: groups must be an integer of at least 1, got {one_line(groups)}"
        )
    if groups > 1:
        return None
    op = torch.ops.scmp.conv2d_lowered_rows
    return (op.padding if isinstance(padding, str) else op.default)(
        x, weight, stride=stride, padding=padding, dilation=dilation
    )
