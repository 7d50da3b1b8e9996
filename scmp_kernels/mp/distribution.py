"""How many rows got which stream length, and what that saves."""

import csv
import threading
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch

from scmp_kernels.mp import plots
from scmp_kernels.mp.assignment import RowAssignment
from scmp_kernels.mp.checks import check_dict, check_readable
from scmp_kernels.mp.costs import CostSummary
from scmp_kernels.mp.entries import check_tags, host_values
from scmp_kernels.mp.files import prepare_path
from scmp_kernels.sc.rng import check_integer


@dataclass
class _Entry:
    """One call of `log`; the counts stay on the device until someone reads them."""

    timestep: int | None
    block: int | None
    operator: str
    total_rows: int
    levels: list[int]
    row_counts: torch.Tensor | list[int]

    def counts(self) -> dict[int, int]:
        """{stream length: rows}."""
        if isinstance(self.row_counts, torch.Tensor):
            self.row_counts = host_values(self.row_counts)
        return dict(zip(self.levels, self.row_counts, strict=True))

    def fractions(self) -> dict[int, float]:
        """{stream length: fraction of the rows}, to 4 digits."""
        rows = self.total_rows
        return {
            level: round(count / rows, 4) if rows else 0.0 for level, count in self.counts().items()
        }


class _Records:
    """What a logger holds: entries of `log`, and (operator, baseline, actual) of `log_compute`."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self.compute: list[tuple[str, int, int]] = []


class MPDistributionLogger:
    """Records the levels of every assignment it is given; class methods, safe in threads.

    ``with MPDistributionLogger():`` starts empty and restores on exit what was there before.
    """

    _lock = threading.Lock()
    _stack = [_Records()]  # the last one is in use

    def __init__(self) -> None:
        self._entered: list[_Records] = []

    def __enter__(self) -> "MPDistributionLogger":
        records = _Records()
        with self._lock:
            self._entered.append(records)
            self._stack.append(records)
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._stack.remove(self._entered.pop())

    @classmethod
    def log(
        cls,
        timestep: int | None,
        block_idx: int | None,
        operator: str,
        assignment: RowAssignment,
        total_rows: int,
    ) -> None:
        """Add an entry with the count and fraction of every level. It waits for no device.

        Args:
            timestep: integer, or None.
            block_idx: integer; None: `get_current_block_idx`.
            operator: its name.
            assignment: a RowAssignment, or what has such a `level_row_indices`.
            total_rows: what a fraction of 1 is, >= 0.

        Raises:
            ValueError: an argument does not fit.
        """
        owner = "MPDistributionLogger.log"
        timestep, block_idx = check_tags(owner, timestep, block_idx, operator)
        total_rows = check_integer(owner, "total_rows", total_rows, 0)
        if isinstance(assignment, RowAssignment):
            check_readable(owner, "assignment", assignment.row_levels)
            levels, counts = list(assignment.stoc_len_levels), assignment.level_counts()
        else:
            indices = getattr(assignment, "level_row_indices", None)
            indices = check_dict(owner, "assignment.level_row_indices", indices)
            levels, counts = list(indices), [len(rows) for rows in indices.values()]
        entry = _Entry(timestep, block_idx, operator, total_rows, levels, counts)
        with cls._lock:
            cls._stack[-1].entries.append(entry)

    @classmethod
    def log_compute(
        cls,
        timestep: int | None,
        block_idx: int | None,
        operator: str,
        baseline: int,
        actual: int,
    ) -> None:
        """Add exact costs: stream length times multiply-accumulates.

        Args:
            timestep: integer, or None.
            block_idx: integer; None: `get_current_block_idx`.
            operator: its name.
            baseline: the cost at full length, an integer >= 0.
            actual: the cost at the lengths that were used, an integer >= 0.

        Raises:
            ValueError: an argument does not fit.
        """
        owner = "MPDistributionLogger.log_compute"
        check_tags(owner, timestep, block_idx, operator)
        baseline = check_integer(owner, "baseline", baseline, 0)
        actual = check_integer(owner, "actual", actual, 0)
        with cls._lock:
            cls._stack[-1].compute.append((operator, baseline, actual))

    @classmethod
    def dump_csv(cls, path: str | PathLike = "debug_mp_distribution.csv") -> int:
        """Write the entries of `log` to a CSV file and clear them (not those of `log_compute`).

        Columns: timestep, block, operator, total_rows, then ``sl_<L>_count`` and ``sl_<L>_frac``
        for every stream length L of any entry, L descending, empty where an entry has no such
        level.

        Args:
            path: of the file; its folder is made where needed.

        Returns:
            Number of rows.

        Raises:
            OSError: the file cannot be written; the entries are kept.
        """
        with cls._lock:
            records = cls._stack[-1]
            entries, records.entries = records.entries, []
        try:
            lengths = sorted({level for entry in entries for level in entry.levels}, reverse=True)
            columns = [f"sl_{length}_{what}" for length in lengths for what in ("count", "frac")]
            with prepare_path(path).open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(["timestep", "block", "operator", "total_rows", *columns])
                for entry in entries:
                    counts, fractions = entry.counts(), entry.fractions()
                    row: list[Any] = [entry.timestep, entry.block, entry.operator, entry.total_rows]
                    for length in lengths:
                        row += [counts.get(length), fractions.get(length)]
                    writer.writerow(row)
        except BaseException:
            with cls._lock:
                records.entries[:0] = entries
            raise
        return len(entries)

    @classmethod
    def stats(cls, max_stoc_len: int = 256) -> CostSummary:
        """The costs by operator, as data.

        An operator with entries of `log_compute` uses those alone; another has
        ``total_rows * max_stoc_len`` against the sum of stream length times rows.

        Args:
            max_stoc_len: the stream length that savings are measured against, >= 1.

        Returns:
            {operator: {"baseline", "actual", "savings"}}, with ``kinds`` and ``totals``.

        Raises:
            ValueError: `max_stoc_len` does not fit.
        """
        max_stoc_len = check_integer("MPDistributionLogger", "max_stoc_len", max_stoc_len, 1)
        with cls._lock:
            entries, compute = list(cls._stack[-1].entries), list(cls._stack[-1].compute)
        pairs: dict[str, dict[str, list[tuple[int, int]]]] = {"compute": {}, "rows": {}}
        for operator, baseline, actual in compute:
            pairs["compute"].setdefault(operator, []).append((baseline, actual))
        for entry in entries:
            actual = sum(length * count for length, count in entry.counts().items())
            pair = entry.total_rows * max_stoc_len, actual
            pairs["rows"].setdefault(entry.operator, []).append(pair)
        return CostSummary(pairs)

    @classmethod
    def summary(
        cls, max_stoc_len: int = 256, save_path: str | PathLike | None = None
    ) -> CostSummary:
        """Print the costs by operator, and return `stats`.

        Args:
            max_stoc_len: the stream length that savings are measured against, >= 1.
            save_path: a text file for what is printed, or None; its folder is made where needed.

        Returns:
            {operator: {"baseline", "actual", "savings"}}, with ``kinds`` and ``totals``.

        Raises:
            ValueError: `max_stoc_len` does not fit.
            OSError: the file cannot be written.
        """
        stats = cls.stats(max_stoc_len)
        text = stats.text()
        print(text)
        if save_path is not None:
            prepare_path(save_path).write_text(text + "\n", encoding="utf-8")
        return stats

    @classmethod
    def plot(cls, path: str | PathLike | None = None) -> Any:
        """Draw, for every operator, the fraction of rows per level stacked by block.

        All timesteps of a block count together.

        Args:
            path: an image file to write, or None; its folder is made where needed.

        Returns:
            matplotlib.figure.Figure.

        Raises:
            ImportError: matplotlib is not installed.
            ValueError: there are no entries of `log`.
            OSError: the file cannot be written.
        """
        with cls._lock:
            entries = list(cls._stack[-1].entries)
        rows: dict[str, dict[int | None, dict[int, int]]] = {}
        for entry in entries:
            sums = rows.setdefault(entry.operator, {}).setdefault(entry.block, {})
            for length, count in entry.counts().items():
                sums[length] = sums.get(length, 0) + count
        return plots.stacked_levels("MPDistributionLogger.plot", rows, path)

    @classmethod
    def clear(cls) -> None:
        """Drop all entries, of `log` and of `log_compute`."""
        with cls._lock:
            records = cls._stack[-1]
            records.entries, records.compute = [], []
