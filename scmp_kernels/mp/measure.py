"""The error of a product's rows at several stream lengths, measured on a sample of the rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from scmp_kernels.mp.checks import check_readable
from scmp_kernels.sc.matmul import sc_matmul
from scmp_kernels.sc.rng import one_line

_LENGTHS = ("stoc_len", "rung_table", "level_lens")


def check_operands(owner: str, a: Any, b: Any, knobs: Mapping[str, Any]) -> None:
    """Raise the ValueError of what is no product of tensors at lengths yet to choose."""
    for name, value in (("a", a), ("b", b)):
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{owner}: {name} must be a tensor, got {type(value).__name__}")
        check_readable(owner, name, value)
    fits = a.dim() == b.dim() in (2, 3) and a.shape[-1] == b.shape[-1]
    if not fits or a.shape[:-2] != b.shape[:-2]:
        raise ValueError(
            f"{owner}: a and b must have shapes (N, D) and (M, D), or (B, N, D) and (B, M, D), "
            f"got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.device != b.device:
        raise ValueError(f"{owner}: b must be on the device of a, {a.device}, got {b.device}")
    if not bool(b.isfinite().all()):
        raise ValueError(f"{owner}: b must be finite, got NaN or Inf")
    for name in _LENGTHS:
        if knobs.get(name) is not None:
            raise ValueError(
                f"{owner}: {name} must be left out, the levels are measured, "
                f"got {one_line(knobs[name])}"
            )


def _sample(metric: torch.Tensor, count: int | None) -> torch.Tensor:
    """(n,) int64 ascending rows, evenly spaced by rank of the metric, ends included."""
    rows = len(metric)
    if count is None or count >= rows:
        return torch.arange(rows, device=metric.device)
    ranks = torch.linspace(0, rows - 1, count, dtype=torch.float64).round().long()
    order = metric.float().argsort(stable=True)
    return order[ranks.to(metric.device)].unique()


def _interpolate(
    metric: np.ndarray, finite: np.ndarray, rows: np.ndarray, errors: np.ndarray
) -> np.ndarray:
    """(N, levels) errors of all rows, linear in the metric between those of `rows`.

    0 for rows that are not finite.
    """
    result = np.zeros((len(metric), errors.shape[1]))
    result[rows] = errors
    sampled = np.zeros(len(metric), bool)
    sampled[rows] = True
    known, others = sampled & finite & np.isfinite(metric), finite & ~sampled
    if known.any() and others.any():
        points, which = np.unique(metric[known], return_inverse=True)
        x = np.nan_to_num(metric[others], nan=np.inf)
        for i in range(errors.shape[1]):  # the mean where rows have the same metric
            means = np.bincount(which, result[known, i]) / np.bincount(which)
            result[others, i] = np.interp(x, points, means)
    result[~finite] = 0
    return result


def measure_errors(
    a: torch.Tensor,
    b: torch.Tensor,
    metric: torch.Tensor,
    levels: Sequence[int],
    sample_rows: int | None,
    knobs: Mapping[str, Any],
    measured: Callable[[], Any],
) -> tuple[torch.Tensor, np.ndarray]:
    """The float product, and every row's part of its relative squared error at every level.

    Args:
        a, b: (N, D) and (M, D), or (B, N, D) and (B, M, D).
        metric: (N,) or (B * N,), by which rows are sampled.
        levels: stream lengths.
        sample_rows: rows to measure, None: all.
        knobs: of `sc_matmul`.
        measured: called after every level.

    Returns:
        (N, M) or (B, N, M) float32; (rows, levels) float64.
    """
    with torch.autocast(a.device.type, enabled=False):
        exact = a.float() @ b.float().mT
    rows = _sample(metric, sample_rows)
    operand, at = a, rows
    if a.dim() == 2:  # whole groups of rows, which share a scale, without the others
        group = knobs.get("group_a", 1)
        if isinstance(group, int) and group > 1:
            starts = (rows // group).unique() * group
            rows = (starts[:, None] + torch.arange(group, device=rows.device)).reshape(-1)
            rows = rows[rows < len(a)]
        operand, at = a[rows], torch.arange(len(rows), device=rows.device)
    wanted = exact.flatten(0, -2)[rows].double()
    lengths = torch.zeros(operand.shape[:-1], dtype=torch.int64, device=a.device)
    errors = []
    for level in levels:
        lengths.view(-1)[at] = level
        y = sc_matmul(operand, b, stoc_len=lengths, **knobs)
        y = y.flatten(0, -2)[at].double()
        errors.append((y - wanted).square().sum(-1))
        measured()
    finite = a.isfinite().all(-1)
    energy = exact[finite].double().square().sum()
    parts = torch.stack(errors, -1) / energy if energy > 0 else torch.stack(errors, -1) * 0
    parts = parts.nan_to_num(nan=0.0, posinf=0.0)
    arrays = [x.cpu().numpy() for x in (metric.float(), finite.reshape(-1), rows, parts)]
    return exact, _interpolate(*arrays)
