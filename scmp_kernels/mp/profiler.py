"""Statistics of the metrics that rows are ranked by."""

import csv
import threading
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch

from scmp_kernels.mp import plots
from scmp_kernels.mp.checks import check_readable
from scmp_kernels.mp.entries import check_tags, host_values
from scmp_kernels.mp.files import prepare_path
from scmp_kernels.sc.rng import one_line

_QUANTILES = {"q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95, "q99": 0.99}
_STATISTICS = ("mean", "std", "min", "max", *_QUANTILES)
_COLUMNS = ("timestep", "block", "operator", "N", *(s for s in _STATISTICS if s != "q50"))


def _statistics(metric: torch.Tensor) -> torch.Tensor:
    """The (9,) float64 statistics of `_STATISTICS` of a metric, without waiting for its device."""
    values = metric.detach().reshape(-1)
    count = values.numel()
    if count == 0:
        return torch.full((len(_STATISTICS),), torch.nan, dtype=torch.float64)
    ordered = values.sort().values  # torch.quantile stops at 2**24 values
    double = values.double()
    mean = double.mean()
    if count > 1:
        std = double.std()
    else:
        std = torch.full_like(mean, torch.nan)
    quantiles = []
    for fraction in _QUANTILES.values():
        position = fraction * (count - 1)
        index = min(int(position), count - 1)
        low, weight = ordered[index].double(), position - index
        if weight:
            high = ordered[index + 1].double()
            low = torch.where(low == high, low, low + weight * (high - low))
        quantiles.append(low)
    low, high = ordered[0].double(), ordered[-1].double()
    statistics = torch.stack([mean, std, low, high, *quantiles])
    # NaN sorts last: one anywhere makes everything NaN, as in torch.quantile.
    return torch.where(high.isnan(), high, statistics)


@dataclass
class _Entry:
    """One call of `record`; the statistics stay on the device until someone reads them."""

    timestep: int | None
    block: int | None
    operator: str
    count: int
    statistics: torch.Tensor | list[float]

    def row(self) -> dict[str, Any]:
        """The entry by column, q50 too."""
        if isinstance(self.statistics, torch.Tensor):
            self.statistics = host_values(self.statistics)
        return {
            "timestep": self.timestep,
            "block": self.block,
            "operator": self.operator,
            "N": self.count,
            **dict(zip(_STATISTICS, self.statistics, strict=True)),
        }


class MetricProfiler:
    """Records statistics of metrics while it is on; class methods, safe in threads.

    It is off at first, and then `record` costs one branch. ``with MetricProfiler():`` turns it on
    and restores on exit what it was; entries stay.
    """

    _lock = threading.Lock()
    _switches = [[False]]  # the last one is in use
    _enabled = False
    _entries: list[_Entry] = []

    def __init__(self) -> None:
        self._entered: list[list[bool]] = []

    def __enter__(self) -> "MetricProfiler":
        switch = [True]
        with self._lock:
            self._entered.append(switch)
            self._switches.append(switch)
            MetricProfiler._enabled = True
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            mine = self._entered.pop()
            self._switches[:] = [switch for switch in self._switches if switch is not mine]
            MetricProfiler._enabled = self._switches[-1][0]

    @classmethod
    def _turn(cls, on: bool) -> None:
        with cls._lock:
            cls._switches[-1][0] = MetricProfiler._enabled = on

    @classmethod
    def enable(cls) -> None:
        """Record from now on."""
        cls._turn(True)

    @classmethod
    def disable(cls) -> None:
        """Record no more; entries stay."""
        cls._turn(False)

    @classmethod
    def record(
        cls, metric: torch.Tensor, timestep: int | None, block_idx: int | None, operator: str
    ) -> None:
        """Add an entry with the statistics of a metric. It waits for no device.

        Args:
            metric: real tensor of any shape, N values in all, (N,) as a rule.
            timestep: integer, or None.
            block_idx: integer; None: `get_current_block_idx`.
            operator: its name.

        Raises:
            ValueError: an argument does not fit (while it is off, none is looked at).
        """
        if not cls._enabled:
            return
        owner = "MetricProfiler.record"
        timestep, block_idx = check_tags(owner, timestep, block_idx, operator)
        if not isinstance(metric, torch.Tensor) or metric.is_complex():
            shown = metric.dtype if isinstance(metric, torch.Tensor) else one_line(metric)
            raise ValueError(f"{owner}: metric must be a real tensor, got {shown}")
        check_readable(owner, "metric", metric)
        entry = _Entry(timestep, block_idx, operator, metric.numel(), _statistics(metric))
        with cls._lock:
            cls._entries.append(entry)

    @classmethod
    def _rows(cls) -> list[dict[str, Any]]:
        with cls._lock:
            entries = list(cls._entries)
        return [entry.row() for entry in entries]

    @classmethod
    def stats(cls) -> list[dict[str, Any]]:
        """The entries as data: one dict per entry, with the columns of `dump_csv`."""
        return [{name: row[name] for name in _COLUMNS} for row in cls._rows()]

    @classmethod
    def dump_csv(cls, path: str | PathLike = "profile_metric_sigma.csv") -> int:
        """Write the entries to a CSV file; they stay.

        Columns: timestep, block, operator, N, mean, std (unbiased, nan for one value), min, max,
        q25, q75, q95, q99 (linear interpolation). All are nan where the metric holds NaN or
        nothing.

        Args:
            path: of the file; its folder is made where needed.

        Returns:
            Number of rows.

        Raises:
            OSError: the file cannot be written.
        """
        rows = cls.stats()
        with prepare_path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return len(rows)

    @classmethod
    def plot(cls, path: str | PathLike | None = None) -> Any:
        """Draw, for every operator, the distribution of the metric by block as boxes.

        A box is the mean over timesteps of the quartiles, its whiskers the least and the greatest
        value. Entries that hold values which are not finite are left out.

        Args:
            path: an image file to write, or None; its folder is made where needed.

        Returns:
            matplotlib.figure.Figure.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: there are no entries with finite values.
            OSError: the file cannot be written.
        """
        return plots.metric_boxes("MetricProfiler.plot", cls._rows(), path)

    @classmethod
    def clear(cls) -> None:
        """Drop all entries; on or off stays."""
        with cls._lock:
            cls._entries.clear()
