"""Checks that the mixed-precision configs, tables and instruments share.

Each takes the `owner` and the `name` that a message starts with, returns the value in its plain
form, and raises a ValueError of one line where it does not fit.
"""

import operator as _operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from scmp_kernels.sc.config import is_transformed
from scmp_kernels.sc.rng import check_integer, one_line

MAX_LEVEL = 2**31 - 1
"""Largest stream length of a level: lengths by row are int32."""

_FRACTION_TOLERANCE = 1e-3


def check_list(owner: str, name: str, value: Any, items: str) -> list[Any]:
    """Return a list, tuple, array or tensor of one dimension as a list."""
    plain = value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value
    if not isinstance(plain, (list, tuple)):
        raise ValueError(f"{owner}: {name} must be a list of {items}, got {one_line(value)}")
    return list(plain)


def check_dict(owner: str, name: str, value: Any) -> Mapping[Any, Any]:
    """Return a mapping as it is."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{owner}: {name} must be a dict, got {one_line(value)}")
    return value


def check_readable(owner: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that the host can read as it is: one that stands for no batch of others."""
    if is_transformed(tensor):
        raise ValueError(
            f"{owner}: {name} must be a tensor outside torch.vmap, since its values are read, "
            "got one inside"
        )
    return tensor


def check_bool(owner: str, name: str, value: Any) -> bool:
    """Return a bool as it is."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}: {name} must be True or False, got {one_line(value)}")
    return value


def check_name(owner: str, name: str, value: Any) -> str:
    """Return the name of an operator as it is."""
    if not isinstance(value, str):
        raise ValueError(f"{owner}: {name} must be a str, got {one_line(value)}")
    return value


def check_any_integer(owner: str, name: str, value: Any, allowed: str = "an integer") -> int:
    """Return an integer of any sign as an int."""
    try:
        if not isinstance(value, (bool, np.bool_)):
            return _operator.index(value)
    except (TypeError, ValueError):  # a tensor of several elements raises either
        pass
    raise ValueError(f"{owner}: {name} must be {allowed}, got {one_line(value)}")


def check_tag(owner: str, name: str, value: Any) -> int | None:
    """Return a timestep or block index of any sign as an int, None as it is."""
    if value is None:
        return None
    return check_any_integer(owner, name, value, "an integer or None")


def check_number(owner: str, name: str, value: Any, low: float, high: float) -> float:
    """Return a number in [low, high] as a float."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not real or not low <= value <= high:
        raise ValueError(
            f"{owner}: {name} must be a number in [{low}, {high}], got {one_line(value)}"
        )
    return float(value)


def check_unit(owner: str, name: str, value: Any) -> float:
    """Return a number in [0, 1] as a float."""
    return check_number(owner, name, value, 0, 1)


def _units(owner: str, name: str, value: Any, count: int, rule: str) -> list[float]:
    """Return `count` numbers in [0, 1]; `rule` says how many there must be."""
    numbers = check_list(owner, name, value, "numbers in [0, 1]")
    if len(numbers) != count:
        raise ValueError(f"{owner}: {name} must have {rule}, {count} here, got {len(numbers)}")
    return [check_unit(owner, f"{name}[{i}]", number) for i, number in enumerate(numbers)]


def check_levels(owner: str, name: str, value: Any) -> list[int]:
    """Return stream lengths: integers >= 0, strictly descending."""
    levels = [
        check_integer(owner, f"{name}[{i}]", level, 0, MAX_LEVEL)
        for i, level in enumerate(check_list(owner, name, value, "stream lengths"))
    ]
    if any(high <= low for high, low in zip(levels, levels[1:], strict=False)):
        raise ValueError(f"{owner}: {name} must be strictly descending, got {one_line(levels)}")
    return levels


def check_level_count(owner: str, name: str, levels: list[int], least: int) -> None:
    """Raise the ValueError of fewer than `least` levels."""
    if len(levels) < least:
        noun = "level" if least == 1 else "levels"
        raise ValueError(f"{owner}: {name} must have at least {least} {noun}, got {levels}")


def check_fractions(owner: str, name: str, value: Any, levels: int) -> list[float]:
    """Return one fraction in [0, 1] per level, with a sum within 1e-3 of 1."""
    fractions = _units(owner, name, value, levels, "one entry per level")
    if abs(sum(fractions) - 1) > _FRACTION_TOLERANCE:
        raise ValueError(
            f"{owner}: {name} must have a sum within {_FRACTION_TOLERANCE} of 1, "
            f"got {one_line(fractions)}"
        )
    return fractions


def check_thresholds(owner: str, name: str, value: Any, levels: int) -> list[float]:
    """Return thresholds in [0, 1], one fewer than levels, non-increasing."""
    thresholds = _units(owner, name, value, levels - 1, "one entry fewer than levels")
    if any(high < low for high, low in zip(thresholds, thresholds[1:], strict=False)):
        raise ValueError(f"{owner}: {name} must be non-increasing, got {one_line(thresholds)}")
    return thresholds


def check_choice(owner: str, name: str, value: Any, allowed: Iterable[str]) -> str:
    """Return one of the allowed strings as it is."""
    allowed = tuple(allowed)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(
            f"{owner}: {name} must be one of {', '.join(allowed)}, got {one_line(value)}"
        )
    return value
