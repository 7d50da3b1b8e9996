"""Threshold tables: thresholds by operator, and by bucket of timesteps and of blocks.

A table is the JSON object ``{"stoc_len_levels": [...], "timestep_buckets": n, "layer_buckets": n,
"operator_defaults": {op: [...] | {"thresholds": [...]}},
"buckets": {"op:t<i>:l<j>": {"thresholds": [...]}}}``; other keys, at the top and beside
"thresholds", are for whoever wrote the table.
"""

import math
import re
from collections.abc import Callable
from os import PathLike
from typing import Any, NamedTuple

from scmp_kernels.mp.checks import (
    check_any_integer,
    check_dict,
    check_levels,
    check_name,
    check_thresholds,
)
from scmp_kernels.mp.files import read_object
from scmp_kernels.sc.rng import check_integer, one_line

Bucket = tuple[str, int, int]
"""Operator, bucket of timesteps, bucket of blocks."""

_BUCKET_KEY = re.compile(r"(.*):t(0|[1-9][0-9]{0,8}):l(0|[1-9][0-9]{0,8})", re.DOTALL)


class ThresholdTable(NamedTuple):
    """What a table file holds."""

    stoc_len_levels: list[int]
    timestep_buckets: int
    layer_buckets: int
    operator_defaults: dict[str, list[float]]
    buckets: dict[Bucket, list[float]]


def bucket_index(owner: str, name: str, value: int, total: int, buckets: int) -> int:
    """The bucket of the value-th of `total` steps: min(n - 1, floor(value / (total - 1) * n)).

    Args:
        owner, name: what a message starts with.
        value: timestep or block, >= 0; above ``total - 1`` it counts as the last.
        total: steps in all; up to 1 everything is in bucket 0.
        buckets: n, >= 1.

    Raises:
        ValueError: `value` is negative, or an argument is no integer.
    """
    value = check_integer(owner, name, value, 0)
    total = check_any_integer(owner, f"total_{name.removesuffix('_idx')}s", total)
    if buckets <= 1 or total <= 1:
        return 0
    return min(buckets - 1, math.floor(value / max(total - 1, 1) * buckets))


def bucket_key(bucket: Bucket) -> str:
    """The key of a bucket in a file."""
    operator, timesteps, layers = bucket
    return f"{operator}:t{timesteps}:l{layers}"


def parse_bucket_key(owner: str, name: str, key: str) -> Bucket:
    """The bucket of a key "op:t<i>:l<j>"; `name` is that of the object that has the key."""
    match = _BUCKET_KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"{owner}: {name} must have keys op:t<i>:l<j>, got {one_line(key)}")
    return match[1], int(match[2]), int(match[3])


def check_operator_thresholds(
    owner: str, name: str, value: Any, levels: int
) -> dict[str, list[float]]:
    """Return {operator: thresholds} in its plain form."""
    return {
        check_name(owner, f"a key of {name}", operator): check_thresholds(
            owner, f"{name}[{one_line(operator)}]", thresholds, levels
        )
        for operator, thresholds in check_dict(owner, name, value).items()
    }


def check_bucket_thresholds(
    owner: str,
    name: str,
    value: Any,
    levels: int,
    timestep_buckets: int,
    layer_buckets: int,
    shown: Callable[[Any], str] = one_line,
) -> dict[Bucket, list[float]]:
    """Return {(operator, t, l): thresholds} in its plain form; `shown` writes a key."""
    result = {}
    for key, thresholds in check_dict(owner, name, value).items():
        entry = f"{name}[{shown(key)}]"
        if not isinstance(key, tuple) or len(key) != 3:
            raise ValueError(
                f"{owner}: {name} must have keys (operator, t, l), got {one_line(key)}"
            )
        bucket = (
            check_name(owner, f"the operator of {entry}", key[0]),
            check_integer(
                owner, f"the timestep bucket of {entry}", key[1], 0, timestep_buckets - 1
            ),
            check_integer(owner, f"the layer bucket of {entry}", key[2], 0, layer_buckets - 1),
        )
        result[bucket] = check_thresholds(owner, entry, thresholds, levels)
    return result


def _payload(owner: str, name: str, value: Any) -> Any:
    """The thresholds in a payload of a table."""
    if "thresholds" not in check_dict(owner, name, value):
        raise ValueError(f"{owner}: {name} must have the key 'thresholds', got {one_line(value)}")
    return value["thresholds"]


def load_table(owner: str, path: str | PathLike, levels: list[int]) -> ThresholdTable:
    """Read and check a table.

    Args:
        owner: what a message starts with, before the file.
        path: of the file.
        levels: the levels that the table must have.

    Raises:
        ValueError: the file is malformed or has other levels; the message names file and key.
        OSError: the file cannot be read.
    """
    owner = f"{owner}: {path}"
    content = read_object(owner, path)
    if "stoc_len_levels" not in content:
        raise ValueError(
            f"{owner}: must have the key 'stoc_len_levels', got {one_line(list(content))}"
        )
    found = check_levels(owner, "stoc_len_levels", content["stoc_len_levels"])
    if found != levels:
        raise ValueError(
            f"{owner}: stoc_len_levels must be those of the config, {levels}, got {found}"
        )
    timesteps, layers = (
        check_integer(owner, name, content.get(name, 1), 1)
        for name in ("timestep_buckets", "layer_buckets")
    )
    defaults = {}
    name = "operator_defaults"
    for operator, value in check_dict(owner, name, content.get(name, {})).items():
        entry = f"{name}[{one_line(operator)}]"
        defaults[operator] = value if isinstance(value, list) else _payload(owner, entry, value)
    buckets = {}
    for key, value in check_dict(owner, "buckets", content.get("buckets", {})).items():
        bucket = parse_bucket_key(owner, "buckets", key)
        buckets[bucket] = _payload(owner, f"buckets[{one_line(key)}]", value)
    return ThresholdTable(
        found,
        timesteps,
        layers,
        check_operator_thresholds(owner, name, defaults, len(levels)),
        check_bucket_thresholds(
            owner,
            "buckets",
            buckets,
            len(levels),
            timesteps,
            layers,
            shown=lambda bucket: one_line(bucket_key(bucket)),
        ),
    )
