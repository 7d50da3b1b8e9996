"""Which rows, and which groups of a weight's rows, get which stream length."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling

from scmp_kernels.mp.assignment import RowAssignment
from scmp_kernels.mp.checks import check_list, check_readable, check_unit
from scmp_kernels.sc.rng import one_line

if TYPE_CHECKING:
    from scmp_kernels.mp.config import AdaptiveMPConfig, RangeMPConfig

_NUMBERS = (
    "classify_groups_by_range: it returns numbers, which a fullgraph region cannot hold: "
    "torch.ops.scmp.classify_groups_by_range returns a tensor"
)


def _check_config(owner: str, config: Any, kind: str, attribute: str) -> None:
    """Raise the ValueError of a config that lacks what its kind has."""
    if not hasattr(config, attribute):
        raise ValueError(f"{owner}: config must be {kind}, got {one_line(config)}")


def _best_first(metric: torch.Tensor) -> torch.Tensor:
    """Rows by descending metric, as the operators rank them."""
    return metric.float().argsort(descending=True, stable=True)


def compute_row_metric(x: torch.Tensor, name: str = "amax") -> torch.Tensor:
    """Return one number per row that says how much precision it needs.

    Args:
        x: (..., N, D) float16, bfloat16, float32 or float64.
        name: ``"amax"`` (largest magnitude), ``"l2"`` (Euclidean norm) or ``"crest"``
            (``amax / (l2 + 1e-12)``).

    Returns:
        (..., N) float32, computed in double and rounded once; 0 for rows without columns.

    Raises:
        ValueError: the shape, dtype or name does not fit.
    """
    return torch.ops.scmp.compute_row_metric(x, name)


def classify_rows_by_metric(
    metric: torch.Tensor, stoc_len_levels: Sequence[int], level_fractions: Sequence[float]
) -> RowAssignment:
    """Give the rows with the largest metric the longest streams, by fixed shares.

    Args:
        metric: (N,) float; compared as float32. NaN counts as largest, ties keep the lower row
            first.
        stoc_len_levels: stream lengths in cycles, one per level, longest first.
        level_fractions: share of the rows per level, each in [0, 1], together 1 within 0.001.
            Level i gets ``round(f_i * N)`` rows, the last level the rest.

    Returns:
        RowAssignment; the rows of a level come best first.

    Raises:
        ValueError: an argument does not fit.
    """
    owner = "classify_rows_by_metric"
    levels = check_list(owner, "stoc_len_levels", stoc_len_levels, "stream lengths")
    fractions = [
        check_unit(owner, f"level_fractions[{i}]", fraction)
        for i, fraction in enumerate(
            check_list(owner, "level_fractions", level_fractions, "numbers in [0, 1]")
        )
    ]
    if len(levels) != len(fractions):
        raise ValueError(
            f"{owner}: level_fractions must have one entry per level, "
            f"{len(levels)}, got {len(fractions)}"
        )
    row_levels = torch.ops.scmp.classify_rows_by_metric(metric, fractions)
    return RowAssignment.from_levels(row_levels, levels, _best_first(metric))


def adaptive_classify_rows(
    metric: torch.Tensor,
    config: "AdaptiveMPConfig",
    operator: str | None = None,
    block_idx: int | None = None,
    total_blocks: int | None = None,
    timestep: int = 0,
    total_timesteps: int = 1,
) -> RowAssignment:
    """Give rows stream lengths by a config: its target fractions, else its thresholds.

    The metric is normalised over its finite values to [0, 1]; a row is at the first level whose
    threshold it reaches, below all at the last. Rows that are all alike, and NaN rows, are at
    level 0.

    Args:
        metric: (N,) float; compared as float32.
        config: AdaptiveMPConfig.
        operator, block_idx, total_blocks, timestep, total_timesteps: which thresholds of the
            config apply (its `get_thresholds`).

    Returns:
        RowAssignment; the rows of a level are in ascending order, by fractions best first.

    Raises:
        ValueError: an argument does not fit, or the config has no thresholds for it.
    """
    _check_config("adaptive_classify_rows", config, "an AdaptiveMPConfig", "target_fractions")
    levels = list(config.stoc_len_levels)
    if isinstance(metric, torch.Tensor) and metric.dim() == 1 and metric.shape[0] == 0:
        return RowAssignment.from_levels(metric.new_zeros(0, dtype=torch.long), levels)
    if config.target_fractions is not None:
        fractions = [float(f) for f in config.target_fractions]
        row_levels = torch.ops.scmp.adaptive_classify_rows(metric, fractions, None)
        return RowAssignment.from_levels(row_levels, levels, _best_first(metric))
    thresholds = config.get_thresholds(timestep, total_timesteps, operator, block_idx, total_blocks)
    row_levels = torch.ops.scmp.adaptive_classify_rows(metric, None, list(thresholds))
    return RowAssignment.from_levels(row_levels, levels)


def classify_groups_by_range(
    weight: torch.Tensor, group_size: int, config: "RangeMPConfig", operator: str | None = None
) -> list[int]:
    """Return the stream length of every group of a weight's rows, by the range of its values.

    Args:
        weight: (O, I) float.
        group_size: rows per group, a divisor of O; 0 or less, or O and more: one group.
        config: RangeMPConfig.
        operator: whose threshold of the config applies.

    Returns:
        list of O / group_size lengths in cycles. This waits for the device, and works neither in
        torch.vmap nor in a fullgraph region: ``torch.ops.scmp.classify_groups_by_range`` does.

    Raises:
        ValueError: an argument does not fit.
    """
    _check_config("classify_groups_by_range", config, "a RangeMPConfig", "get_threshold")
    levels = list(config.stoc_len_levels)
    threshold = config.get_threshold(operator)
    if isinstance(weight, torch.Tensor):
        check_readable("classify_groups_by_range", "weight", weight)
    if is_compiling():
        torch._dynamo.graph_break(msg=_NUMBERS)
    found = torch.ops.scmp.classify_groups_by_range(weight, group_size, threshold, len(levels))
    return [levels[level] for level in found.tolist()]
