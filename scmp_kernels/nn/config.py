"""What a module runs with: `SCConfig`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from scmp_kernels.mp import (
    AdaptiveMPConfig,
    MPConfig,
    RowAssignment,
    adaptive_classify_rows,
    classify_rows_by_metric,
    compute_row_metric,
)
from scmp_kernels.mp.checks import check_any_integer, check_bool, check_name
from scmp_kernels.sc.config import StreamConfig
from scmp_kernels.sc.lengths import longest_stream
from scmp_kernels.sc.matmul import sc_matmul
from scmp_kernels.sc.rng import one_line

_PREPARED = (  # the knobs that `prepare` takes
    "granularity",
    "mode",
    "sc_prec",
    "chunk_d",
    "group_b",
    "rng_levels",
    "config",
    "halve_bipolar_stoc_len",
)
_METRIC_LABELS = ("q_row_max", "attn_row_max", "x_row_max")  # row max-abs, "amax"


@dataclass(frozen=True, repr=False)
class SCConfig:
    """The knobs of `sc_matmul` for one module, with its defaults; frozen.

    Args:
        granularity, mode, sc_prec, stoc_len, chunk_d, group_a, group_b, rng_levels,
            halve_bipolar_stoc_len: as in `sc_matmul`, `stoc_len` an int or None.
        config: RNG config: a dict (becomes a StreamConfig), JSON text or None.
        mp: stream lengths by row, instead of `stoc_len`: MPConfig or AdaptiveMPConfig, which
            classify the rows of each call, or a RowAssignment for calls of exactly its rows.
        operator: the name that an AdaptiveMPConfig has thresholds for; None: the module's name,
            where `convert` makes it. Attention adds ".qk" and ".av" to it.
        enabled: False: the module computes in float, as its torch twin.

    Raises:
        ValueError: a field does not fit; the message names it.
    """

    granularity: str = "per_row"
    mode: str = "bipolar"
    sc_prec: int = 8
    stoc_len: int | None = None
    chunk_d: int = 0
    group_a: int = 1
    group_b: int = 1
    rng_levels: int | None = None
    config: Mapping[str, Any] | str | None = None
    halve_bipolar_stoc_len: bool = False
    mp: MPConfig | AdaptiveMPConfig | RowAssignment | None = None
    operator: str | None = None
    enabled: bool = True

    def __post_init__(self) -> None:
        if self.config is not None and not isinstance(self.config, StreamConfig):
            object.__setattr__(self, "config", _stream_config(self.config))
        if self.operator is not None and not isinstance(self.operator, str):
            raise ValueError(
                f"SCConfig: operator must be a str or None, got {one_line(self.operator)}"
            )
        self._check_types()
        if self.stoc_len is not None and type(self.stoc_len) is not int:
            raise ValueError(
                "SCConfig: stoc_len must be an int or None (mp has lengths by row), "
                f"got {one_line(self.stoc_len)}"
            )
        self._check_mp()
        if any(getattr(self, f.name) != f.default for f in fields(self)):  # not while importing
            self._check_knobs()

    def _check_types(self) -> None:
        for name in ("granularity", "mode"):
            check_name("SCConfig", name, getattr(self, name))
        for name in ("halve_bipolar_stoc_len", "enabled"):
            check_bool("SCConfig", name, getattr(self, name))
        for name in ("sc_prec", "chunk_d", "group_a", "group_b", "rng_levels"):
            value = getattr(self, name)
            if value is not None or name != "rng_levels":
                number = check_any_integer("SCConfig", name, value)
                object.__setattr__(self, name, number)  # numpy's become int

    def _check_mp(self) -> None:
        if self.mp is None:
            return
        if not isinstance(self.mp, (MPConfig, AdaptiveMPConfig, RowAssignment)):
            raise ValueError(
                "SCConfig: mp must be an MPConfig, AdaptiveMPConfig, RowAssignment or None, "
                f"got {one_line(self.mp)}"
            )
        for name, only in (("stoc_len", None), ("granularity", "per_row"), ("mode", "bipolar")):
            value = getattr(self, name)
            if value != only:
                raise ValueError(
                    f"SCConfig: {name} must be {only!r} with mp, got {one_line(value)}"
                )

    def _check_knobs(self) -> None:
        """Let the operator check them, on tensors without values."""
        columns = len(self.config["sng"]["q"]) if isinstance(self.config, Mapping) else 1
        a = torch.empty(1, columns, device="meta")
        if self.granularity == "per_head":
            a = a[None]
        try:
            sc_matmul(a, a, stoc_len=self.stoc_len, group_a=self.group_a, **self.prepared_knobs())
            if self.mp is not None and self.levels()[0] > self.longest():
                raise ValueError(
                    f"SCConfig: mp must have levels of at most {self.longest()} cycles, "
                    f"got {self.levels()}"
                )
        except ValueError as error:
            text = str(error).removeprefix("sc_matmul: ").removeprefix("SCConfig: ")
            raise ValueError(f"SCConfig: {text}") from None

    def prepared_knobs(self) -> dict[str, Any]:
        """The knobs that `prepare` takes."""
        return {name: getattr(self, name) for name in _PREPARED}

    def longest(self) -> int:
        """The most cycles that a stream can have."""
        return longest_stream(self.sc_prec, self.mode, self.halve_bipolar_stoc_len)

    def levels(self) -> list[int]:
        """The stream lengths that rows can have, longest first."""
        if self.mp is not None:
            return list(self.mp.stoc_len_levels)
        return [self.longest() if self.stoc_len is None else self.stoc_len]

    def lengths(self, rows: torch.Tensor, metric: str, product: str = "") -> int | None | Any:
        """What a call takes as `stoc_len`.

        Args:
            rows: (..., N, D), a of the call: what `mp` classifies, all together.
            metric: field of an MPConfig that names the metric: "qk_metric", ....
            product: what is added to `operator`: "qk", "av" or nothing.

        Returns:
            int, None, or (..., N) int32.

        Raises:
            ValueError: an AdaptiveMPConfig has no thresholds for the operator, or a RowAssignment
                is one of another number of rows.
        """
        if self.mp is None:
            return self.stoc_len
        if isinstance(self.mp, RowAssignment):
            assigned, called = self.mp.row_stoc_len, rows.shape[:-1]
            if assigned.shape[0] != called.numel():
                raise ValueError(
                    "SCConfig: mp must have as many rows as a call, "
                    f"{called.numel()} here, got a RowAssignment of {assigned.shape[0]}"
                )
            return assigned.view(called)
        operator = joined(self.operator, product) or None
        with torch.no_grad():
            if isinstance(self.mp, MPConfig):
                name = getattr(self.mp, metric)
                values = compute_row_metric(rows, "amax" if name in _METRIC_LABELS else name)
                found = classify_rows_by_metric(
                    values.flatten(), self.mp.stoc_len_levels, self.mp.level_fractions or []
                )
            else:
                values = compute_row_metric(rows)
                found = adaptive_classify_rows(values.flatten(), self.mp, operator)
        return found.row_stoc_len.view(rows.shape[:-1])

    def for_module(self, name: str) -> "SCConfig":
        """This config for a module of that name: its operator, where it needs one."""
        if self.operator is None and isinstance(self.mp, AdaptiveMPConfig):
            return replace(self, operator=name)
        return self

    def for_part(self, name: str) -> "SCConfig":
        """This config for a part of its module: `name` is added to the operator."""
        if self.operator is None and not isinstance(self.mp, AdaptiveMPConfig):
            return self
        return replace(self, operator=joined(self.operator, name))

    def __repr__(self) -> str:
        shown = (f for f in fields(self) if getattr(self, f.name) != f.default)
        parts = (f"{f.name}={one_line(getattr(self, f.name))}" for f in shown)
        return f"SCConfig({', '.join(parts)})"


def joined(*names: str | None) -> str:
    """The name of an operator by those of modules and products, without the empty ones."""
    return ".".join(name for name in names if name)


def check_config(owner: str, config: Any) -> SCConfig:
    """Return an SCConfig as it is."""
    if not isinstance(config, SCConfig):
        raise ValueError(f"{owner}: config must be an SCConfig, got {one_line(config)}")
    return config


def check_module(owner: str, name: str, module: Any, kind: type = nn.Module) -> None:
    """Raise the ValueError of what is no module of that kind of torch's."""
    if not isinstance(module, kind):
        raise ValueError(
            f"{owner}: {name} must be a torch.nn.{kind.__name__}, got {one_line(module)}"
        )


def _stream_config(config: Any) -> StreamConfig:
    """A config that an SCConfig can keep and pickle."""
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            pass
    if not isinstance(config, Mapping) or "q" not in (config.get("sng") or {}):
        raise ValueError(
            "SCConfig: config must be an RNG config (scmp_kernels.sc.config_helpers) as dict or "
            f"JSON text, or None, got {one_line(config)}"
        )
    return StreamConfig(dict(config))
