"""Stochastic-computing matrix product."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scmp_kernels.sc.config import config_argument
from scmp_kernels.sc.lengths import length_arguments, longest_stream
from scmp_kernels.sc.prepared import Prepared


def sc_matmul(
    a: torch.Tensor,
    b: torch.Tensor | Prepared,
    granularity: str = "per_row",
    *,
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
    """``a @ b.T`` computed by stochastic-computing multipliers, bit for bit.

    Both operands are quantized to ``sc_prec`` bits; each product is the number of ones that leave
    an AND gate whose inputs are a's and b's streams, b's generator advancing only while a's stream
    is on ("enable signal"). The integer sums are exact.

    Args:
        a: (N, D) or (B, N, D), float16, bfloat16, float32 or float64, any strides.
        b: (M, D) or (B, M, D), same rank, batch and device as ``a``; or what
            `scmp_kernels.prepare` made of it: then knobs left at their defaults are those that it
            was made for, others must be equal to them; ``group_a`` and the lengths are free.
        granularity: what shares a quantization range: ``"per_row"`` (groups of rows),
            ``"per_tensor"`` or ``"per_head"`` (each batch entry; 3D, bipolar).
        mode: ``"bipolar"`` (sign and magnitude) or ``"unipolar"`` (zero point).
        sc_prec: bits of the number generators, 2 to 12.
        stoc_len: stream length in cycles, 1 to ``2**sc_prec``; default ``2**sc_prec``. Or integers
            by row, (N,) or (B, N), or by row and chunk, (N, chunks): each row then has the bits of
            the call in which all rows have its length; 0 skips it (zeros). Per_row and bipolar.
        chunk_d: > 0: quantize and accumulate in chunks of this many columns (2D, per_row, bipolar).
        group_a: consecutive rows of ``a`` that share a scale (per_row).
        group_b: the same for ``b``.
        rng_levels: steps of the grid that streams and codes live on, 1 to ``2**sc_prec``; default
            ``2**sc_prec``.
        config: RNG config (``scmp_kernels.sc.config_helpers``, a plain dict, or JSON text);
            default: one Sobol pair for all positions.
        halve_bipolar_stoc_len: bipolar: ``stoc_len`` and ``rng_levels`` default to
            ``2**(sc_prec - 1)``; no effect in unipolar mode.
        smooth_scales: (D,) positive SmoothQuant scales: the product of ``a / s`` and ``b * s``.
        rung_table: (N, chunks) integers, indices into ``level_lens``: the compact form of lengths
            by row and chunk (2D with ``chunk_d``). An int ``stoc_len`` beside it caps the levels.
        level_lens: the lengths that ``rung_table`` chooses from, 0 to ``2**sc_prec`` each.

    Returns:
        (N, M) or (B, N, M) float32. Differentiable straight through: as ``a @ b.T``.

    Raises:
        ValueError: an argument, the config or an environment variable does not fit; the text names
            it, what is allowed and what came.
    """
    knobs = {
        "granularity": granularity,
        "mode": mode,
        "sc_prec": sc_prec,
        "chunk_d": chunk_d,
        "group_b": group_b,
        "rng_levels": rng_levels,
        "config": config,
        "halve_bipolar_stoc_len": halve_bipolar_stoc_len,
    }
    if isinstance(b, Prepared):
        b.check_knobs("sc_matmul", knobs, smooth_scales)
        lengths = length_arguments(
            "sc_matmul", a, stoc_len, rung_table, level_lens, b.longest_stream()
        )
        return torch.ops.scmp.sc_matmul.prepared(
            a, b.tensors, b.call_spec(), group_a=group_a, **lengths
        )
    knobs["config"] = None if config is None else config_argument(config)
    longest = longest_stream(sc_prec, mode, halve_bipolar_stoc_len)
    lengths = length_arguments("sc_matmul", a, stoc_len, rung_table, level_lens, longest)
    return torch.ops.scmp.sc_matmul.default(
        a, b, group_a=group_a, smooth_scales=smooth_scales, **knobs, **lengths
    )
