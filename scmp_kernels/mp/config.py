"""Configs of mixed precision, and every other name of `scmp_kernels.mp`.

All of them check what they are made of (a ValueError that names the field) and go to a JSON file
and back without loss: ``to_json(path)``, ``from_json(path)``.
"""

import os
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

from scmp_kernels.mp.assignment import RowAssignment
from scmp_kernels.mp.checks import (
    check_bool,
    check_choice,
    check_dict,
    check_fractions,
    check_level_count,
    check_levels,
    check_name,
    check_unit,
)
from scmp_kernels.mp.classifiers import (
    adaptive_classify_rows,
    classify_groups_by_range,
    classify_rows_by_metric,
    compute_row_metric,
)
from scmp_kernels.mp.distribution import MPDistributionLogger
from scmp_kernels.mp.entries import get_current_block_idx, set_current_block_idx
from scmp_kernels.mp.json_config import JsonConfig
from scmp_kernels.mp.profiler import MetricProfiler
from scmp_kernels.mp.thresholds import (
    bucket_index,
    bucket_key,
    check_bucket_thresholds,
    check_operator_thresholds,
    load_table,
    parse_bucket_key,
)
from scmp_kernels.sc.rng import check_integer, one_line

__all__ = [
    "adaptive_classify_rows",
    "classify_groups_by_range",
    "classify_rows_by_metric",
    "compute_row_metric",
    "AdaptiveMPConfig",
    "MPConfig",
    "MPDistributionLogger",
    "MetricProfiler",
    "RangeMPConfig",
    "RowAssignment",
    "get_current_block_idx",
    "set_current_block_idx",
]

_METRICS = ("amax", "l2", "crest")


@dataclass
class MPConfig(JsonConfig):
    """Fixed fractions of the rows per stream length, the rows ranked by a metric.

    Args:
        stoc_len_levels: stream lengths in cycles, strictly descending, >= 0, at least one; 0 skips.
        level_fractions: fraction of the rows per level, in [0, 1], the sum within 1e-3 of 1, used
            as given; None becomes equal ones.
        qk_metric: of the rows of Q: "q_row_max" (max-abs), "amax" (the same), "l2" or "crest".
        av_metric: of the rows of the attention: "attn_row_max" or as above.
        mlp_metric: of the rows of an MLP's input: "x_row_max" or as above.

    Raises:
        ValueError: a field does not fit; the message names it.
    """

    stoc_len_levels: list[int]
    level_fractions: list[float] | None = None
    qk_metric: str = "q_row_max"
    av_metric: str = "attn_row_max"
    mlp_metric: str = "x_row_max"

    def __post_init__(self) -> None:
        owner = "MPConfig"
        self.stoc_len_levels = check_levels(owner, "stoc_len_levels", self.stoc_len_levels)
        levels = len(self.stoc_len_levels)
        check_level_count(owner, "stoc_len_levels", self.stoc_len_levels, 1)
        if self.level_fractions is None:
            self.level_fractions = [1 / levels] * levels
        else:
            self.level_fractions = check_fractions(
                owner, "level_fractions", self.level_fractions, levels
            )
        check_choice(owner, "qk_metric", self.qk_metric, ("q_row_max", *_METRICS))
        check_choice(owner, "av_metric", self.av_metric, ("attn_row_max", *_METRICS))
        check_choice(owner, "mlp_metric", self.mlp_metric, ("x_row_max", *_METRICS))


@dataclass
class AdaptiveMPConfig(JsonConfig):
    """Thresholds on the normalised metric, by operator, timestep and block; or fractions.

    Args:
        stoc_len_levels: stream lengths in cycles, strictly descending, >= 0, at least two; a last
            level 0 skips rows.
        enable_pruning: False: drop a last level 0 first; what follows, and "at least two", is
            about the levels left.
        threshold_table_path: a table to load (`load_threshold_table`), or None. It replaces the
            bucket counts and thresholds given here.
        timestep_buckets: number of buckets that the timesteps fall in, >= 1.
        layer_buckets: the same for the blocks.
        operator_default_thresholds: {operator: thresholds}; thresholds are numbers in [0, 1], one
            fewer than levels, non-increasing.
        bucket_thresholds: {(operator, timestep bucket, layer bucket): thresholds}.
        target_fractions: fraction of the rows per level, in [0, 1], the sum within 1e-3 of 1; they
            win over thresholds. None: thresholds.

    Raises:
        ValueError: a field or the table does not fit; the message names it.
        OSError: the table cannot be read.
    """

    stoc_len_levels: list[int]
    enable_pruning: bool = True
    threshold_table_path: str | None = None
    timestep_buckets: int = 1
    layer_buckets: int = 1
    operator_default_thresholds: dict[str, list[float]] = field(default_factory=dict)
    bucket_thresholds: dict[tuple[str, int, int], list[float]] = field(default_factory=dict)
    target_fractions: list[float] | None = None

    def __post_init__(self) -> None:
        owner = "AdaptiveMPConfig"
        levels = check_levels(owner, "stoc_len_levels", self.stoc_len_levels)
        if not check_bool(owner, "enable_pruning", self.enable_pruning) and levels[-1:] == [0]:
            levels.pop()
        check_level_count(owner, "stoc_len_levels", levels, 2)
        self.stoc_len_levels = levels
        for name in ("timestep_buckets", "layer_buckets"):
            setattr(self, name, check_integer(owner, name, getattr(self, name), 1))
        self.operator_default_thresholds = check_operator_thresholds(
            owner, "operator_default_thresholds", self.operator_default_thresholds, len(levels)
        )
        self.bucket_thresholds = check_bucket_thresholds(
            owner,
            "bucket_thresholds",
            self.bucket_thresholds,
            len(levels),
            self.timestep_buckets,
            self.layer_buckets,
        )
        if self.target_fractions is not None:
            self.target_fractions = check_fractions(
                owner, "target_fractions", self.target_fractions, len(levels)
            )
        if self.threshold_table_path is not None:
            self.threshold_table_path = _path_text(owner, self.threshold_table_path)
            self._load(owner, self.threshold_table_path)

    def load_threshold_table(self, path: str | PathLike) -> None:
        """Replace the bucket counts and both sets of thresholds by those of a JSON file.

        ``{"stoc_len_levels": [...], "timestep_buckets": n, "layer_buckets": n,
        "operator_defaults": {op: [...] | {"thresholds": [...]}},
        "buckets": {"op:t<i>:l<j>": {"thresholds": [...]}}}``. Only stoc_len_levels is required;
        counts left out are 1, sets left out are empty. Other keys are allowed. Where it raises,
        the config is as before.

        Args:
            path: of the file.

        Raises:
            ValueError: the file is malformed or has other levels; the message names file and key.
            OSError: the file cannot be read.
        """
        self._load("AdaptiveMPConfig.load_threshold_table", path)

    def _load(self, owner: str, path: str | PathLike) -> None:
        table = load_table(owner, path, self.stoc_len_levels)
        self.timestep_buckets = table.timestep_buckets
        self.layer_buckets = table.layer_buckets
        self.operator_default_thresholds = table.operator_defaults
        self.bucket_thresholds = table.buckets

    def get_thresholds(
        self,
        timestep: int,
        total_timesteps: int,
        operator: str | None = None,
        block_idx: int | None = None,
        total_blocks: int | None = None,
    ) -> list[float]:
        """The thresholds of an operator at a timestep in a block.

        The bucket's, if `block_idx` and `total_blocks` are given and the bucket has some, else the
        operator's default. The k-th of `total` steps is in bucket
        ``min(n - 1, floor(k / max(total - 1, 1) * n))``, 0 where n or `total` is at most 1.

        Args:
            timestep: >= 0.
            total_timesteps: timesteps in all.
            operator: its name.
            block_idx: >= 0, or None.
            total_blocks: blocks in all, or None.

        Returns:
            Thresholds in [0, 1], one fewer than levels, non-increasing.

        Raises:
            ValueError: an argument does not fit, or there are no thresholds for it.
        """
        owner = "AdaptiveMPConfig.get_thresholds"
        if operator is not None:
            check_name(owner, "operator", operator)
        at = bucket_index(owner, "timestep", timestep, total_timesteps, self.timestep_buckets)
        thresholds = None
        if block_idx is not None:
            total = 1 if total_blocks is None else total_blocks
            layer = bucket_index(owner, "block_idx", block_idx, total, self.layer_buckets)
            if total_blocks is not None and operator is not None:
                thresholds = self.bucket_thresholds.get((operator, at, layer))
        if thresholds is None and operator is not None:
            thresholds = self.operator_default_thresholds.get(operator)
        if thresholds is None:
            known = ", ".join(self.operator_default_thresholds) or "none"
            raise ValueError(
                f"{owner}: operator must have thresholds in the bucket or be one with a default "
                f"({known}), got {one_line(operator)}"
            )
        return list(thresholds)

    def _to_content(self) -> dict[str, Any]:
        buckets = {bucket_key(key): value for key, value in self.bucket_thresholds.items()}
        return {**super()._to_content(), "bucket_thresholds": buckets}

    @classmethod
    def _from_content(cls, owner: str, content: dict[str, Any]) -> "AdaptiveMPConfig":
        content, name = dict(content), "bucket_thresholds"
        if name in content:
            content[name] = {
                parse_bucket_key(owner, name, key): value
                for key, value in check_dict(owner, name, content[name]).items()
            }
        # The file has the thresholds; the table may have moved or changed since.
        path = content.pop("threshold_table_path", None)
        config = cls(**content)
        if path is not None:
            config.threshold_table_path = _path_text(owner, path)
        return config


def _path_text(owner: str, path: Any) -> str:
    """A path as a str."""
    try:
        return os.fsdecode(path)
    except TypeError:
        raise ValueError(
            f"{owner}: threshold_table_path must be a path or None, got {one_line(path)}"
        ) from None


@dataclass
class RangeMPConfig(JsonConfig):
    """A threshold on the range of a group of weight rows, by operator.

    Args:
        stoc_len_levels: stream lengths in cycles, strictly descending, >= 0, at least two.
        base_threshold: in [0, 1], for operators without one of their own.
        operator_thresholds: {operator: threshold in [0, 1]}.

    Raises:
        ValueError: a field does not fit; the message names it.
    """

    stoc_len_levels: list[int]
    base_threshold: float = 0.3
    operator_thresholds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owner = "RangeMPConfig"
        self.stoc_len_levels = check_levels(owner, "stoc_len_levels", self.stoc_len_levels)
        check_level_count(owner, "stoc_len_levels", self.stoc_len_levels, 2)
        self.base_threshold = check_unit(owner, "base_threshold", self.base_threshold)
        name = "operator_thresholds"
        self.operator_thresholds = {
            check_name(owner, f"a key of {name}", operator): check_unit(
                owner, f"{name}[{one_line(operator)}]", threshold
            )
            for operator, threshold in check_dict(owner, name, self.operator_thresholds).items()
        }

    def get_threshold(self, operator: str | None = None) -> float:
        """The threshold of an operator: its own, else `base_threshold`.

        Args:
            operator: its name, or None.

        Raises:
            ValueError: `operator` is no str.
        """
        if operator is None:
            return self.base_threshold
        check_name("RangeMPConfig.get_threshold", "operator", operator)
        return self.operator_thresholds.get(operator, self.base_threshold)
