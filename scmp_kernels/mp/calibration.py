"""What a calibration found, and the threshold table that it writes."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from scmp_kernels.mp.config import AdaptiveMPConfig
from scmp_kernels.mp.files import write_object
from scmp_kernels.mp.thresholds import Bucket, bucket_key


@dataclass(frozen=True)
class CalibratedRows:
    """The rows that one set of thresholds is for: of an operator, or of one of its buckets.

    Lengths are means weighted by multiply-accumulates, errors means over the calls.
    """

    operator: str
    bucket: Bucket | None
    """None: the operator's default."""
    thresholds: list[float]
    rows: int
    macs: int
    mean_length: float
    error: float
    uniform_error: float

    def payload(self) -> dict[str, Any]:
        """What a table holds of it."""
        names = ("thresholds", "rows", "macs", "mean_length", "error", "uniform_error")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Calibration:
    """Thresholds for a budget, and what they cost and give on the recorded rows.

    Errors are means over the recorded calls, weighted by operator where `calibrate_thresholds` was
    given weights; the error of a call that was measured is its relative squared error,
    ``||y - a b^T||^2 / ||a b^T||^2``.
    """

    stoc_len_levels: list[int]
    timestep_buckets: int
    layer_buckets: int
    budget: float
    """The mean stream length asked for."""
    mean_length: float
    """That of the thresholds, weighted by multiply-accumulates; at most the budget."""
    error: float
    error_bound: float
    """No thresholds from the candidates within the budget have a smaller error."""
    uniform_length: int
    """The longest level within the budget."""
    uniform_error: float
    """The error with every row at `uniform_length`."""
    rows: list[CalibratedRows]
    """In the order in which they were first recorded."""
    unseen_defaults: dict[str, list[float]]
    """Defaults of operators that were recorded in buckets only, for buckets without records."""

    @property
    def operator_defaults(self) -> dict[str, list[float]]:
        """{operator: thresholds}."""
        own = {part.operator: list(part.thresholds) for part in self.rows if part.bucket is None}
        return {**own, **{name: list(value) for name, value in self.unseen_defaults.items()}}

    @property
    def buckets(self) -> dict[Bucket, list[float]]:
        """{(operator, timestep bucket, layer bucket): thresholds}."""
        return {part.bucket: list(part.thresholds) for part in self.rows if part.bucket is not None}

    def config(self) -> AdaptiveMPConfig:
        """The config with these thresholds, equal to one that loads the table."""
        return AdaptiveMPConfig(
            self.stoc_len_levels,
            timestep_buckets=self.timestep_buckets,
            layer_buckets=self.layer_buckets,
            operator_default_thresholds=self.operator_defaults,
            bucket_thresholds=self.buckets,
        )

    def save(self, path: str | PathLike) -> Path:
        """Write the table that `AdaptiveMPConfig` loads, making its folder where needed.

        Beside the thresholds it holds what they cost and give, for people to read.

        Args:
            path: of the JSON file.

        Returns:
            Path of the file.

        Raises:
            OSError: the file cannot be written.
        """
        names = ("budget", "mean_length", "error", "error_bound", "uniform_length", "uniform_error")
        defaults = {part.operator: part.payload() for part in self.rows if part.bucket is None}
        unseen = {name: {"thresholds": value} for name, value in self.unseen_defaults.items()}
        content = {
            "stoc_len_levels": self.stoc_len_levels,
            "timestep_buckets": self.timestep_buckets,
            "layer_buckets": self.layer_buckets,
            "operator_defaults": {**defaults, **unseen},
            "buckets": {
                bucket_key(part.bucket): part.payload()
                for part in self.rows
                if part.bucket is not None
            },
            "calibration": {name: getattr(self, name) for name in names},
        }
        return write_object(path, content)

    def text(self) -> str:
        """A table of operators (and buckets): mean length, error, error of the uniform length."""
        uniform = f"error at {self.uniform_length}"
        lines: list[tuple[Any, ...]] = [("rows of", "mean length", "error", uniform)]
        for part in self.rows:
            name = part.operator if part.bucket is None else bucket_key(part.bucket)
            lines.append((name, part.mean_length, part.error, part.uniform_error))
        lines.append(("all", self.mean_length, self.error, self.uniform_error))
        cells = [lines[0], *((n, f"{m:.2f}", f"{e:.3e}", f"{u:.3e}") for n, m, e, u in lines[1:])]
        first, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
        return "\n".join(
            "  ".join([name.ljust(first), *map(str.rjust, numbers, widths)])
            for name, *numbers in cells
        )
