"""Which level, and so which stream length, every row has."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scmp_kernels.mp.checks import check_dict, check_level_count, check_levels, check_readable
from scmp_kernels.sc.config import is_recording, is_transformed
from scmp_kernels.sc.rng import one_line

_OWNER = "RowAssignment"


def _check_rows(name: str, value: Any) -> torch.Tensor:
    """Return an int64 tensor of one dimension as it is."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.int64 or value.dim() != 1:
        shown = (
            f"{value.dtype} of shape {tuple(value.shape)}"
            if isinstance(value, torch.Tensor)
            else one_line(value)
        )
        raise ValueError(f"{_OWNER}: {name} must be a 1D int64 tensor, got {shown}")
    return value


def _has_values(*tensors: torch.Tensor) -> bool:
    """Whether all are on the CPU with values to look at: not where a graph is recorded, nor in
    torch.vmap."""
    return not is_recording() and not any(
        x.device.type != "cpu" or is_transformed(x) for x in tensors
    )


class RowAssignment:
    """A level for each of N rows.

    Args:
        row_levels: (N,) int64, index of each row's level.
        level_row_indices: {stream length: (n,) int64 rows of that level} in the order of the levels
            (strictly descending lengths), every row once, empty tensors for levels without rows.

    Raises:
        ValueError: an argument does not fit. Values are checked where they are on the CPU.
    """

    _indices: dict[int, torch.Tensor] | None
    _order: torch.Tensor | None
    _row_stoc_len: torch.Tensor | None

    def __init__(
        self, row_levels: torch.Tensor, level_row_indices: Mapping[int, torch.Tensor]
    ) -> None:
        indices = {
            level: _check_rows(f"level_row_indices[{one_line(level)}]", rows)
            for level, rows in check_dict(_OWNER, "level_row_indices", level_row_indices).items()
        }
        self._set(row_levels, "level_row_indices", list(indices))
        count = sum(rows.numel() for rows in indices.values())
        if count != self.row_levels.numel():
            raise ValueError(
                f"{_OWNER}: level_row_indices must have {self.row_levels.numel()} rows as "
                f"row_levels has, got {count}"
            )
        if _has_values(self.row_levels, *indices.values()):
            self._check_indices(indices)
        self._indices = dict(zip(self.stoc_len_levels, indices.values(), strict=True))

    @classmethod
    def from_levels(
        cls,
        row_levels: torch.Tensor,
        stoc_len_levels: Sequence[int],
        order: torch.Tensor | None = None,
    ) -> "RowAssignment":
        """An assignment that builds `level_row_indices` when it is asked for.

        Args:
            row_levels: (N,) int64, index of each row's level.
            stoc_len_levels: stream lengths, strictly descending, at least one.
            order: (N,) int64, all rows by ascending level, as `level_row_indices` lists them; None:
                ascending rows within a level.

        Raises:
            ValueError: an argument does not fit. Values are checked where they are on the CPU.
        """
        self = cls.__new__(cls)
        self._set(row_levels, "stoc_len_levels", stoc_len_levels)
        if order is not None:
            count = _check_rows("order", order).numel()
            if count != row_levels.numel():
                raise ValueError(
                    f"{_OWNER}: order must have {row_levels.numel()} rows as row_levels has, "
                    f"got {count}"
                )
        self._indices, self._order = None, order
        return self

    def _set(self, row_levels: torch.Tensor, name: str, levels: Any) -> None:
        """Check and set what both ways of making one share; `name` has the levels."""
        self.row_levels = _check_rows("row_levels", row_levels)
        self.stoc_len_levels = check_levels(_OWNER, name, levels)
        check_level_count(_OWNER, name, self.stoc_len_levels, 1)
        if _has_values(row_levels) and row_levels.numel():
            low, high = (int(value) for value in row_levels.aminmax())
            last = len(self.stoc_len_levels) - 1
            if low < 0 or high > last:
                raise ValueError(
                    f"{_OWNER}: row_levels must be in [0, {last}], got {low if low < 0 else high}"
                )
        self._row_stoc_len = None

    def _check_indices(self, indices: dict[int, torch.Tensor]) -> None:
        """Raise the ValueError of a dict that does not say what `row_levels` says."""
        rows = torch.cat(list(indices.values()))
        if not torch.equal(rows.sort().values, torch.arange(rows.numel())):
            raise ValueError(
                f"{_OWNER}: level_row_indices must have every row once, got {one_line(indices)}"
            )
        for i, (level, rows) in enumerate(indices.items()):
            if not bool((self.row_levels[rows] == i).all()):
                raise ValueError(
                    f"{_OWNER}: level_row_indices[{level}] must have the rows of level {i} in "
                    f"row_levels, got {one_line(rows.tolist())}"
                )

    @property
    def level_row_indices(self) -> dict[int, torch.Tensor]:
        """{stream length: (n,) int64 rows}, in the order of the levels; all levels are there.

        The first use may wait for the device.
        """
        if self._indices is None:
            order = self._order
            check_readable(_OWNER, "row_levels", self.row_levels)
            if order is None:
                order = self.row_levels.argsort(stable=True)
            rows = order.split(self.level_counts().tolist())
            self._indices = dict(zip(self.stoc_len_levels, rows, strict=True))
        return self._indices

    @property
    def row_stoc_len(self) -> torch.Tensor:
        """(N,) int32, the stream length of every row, for `sc_matmul`; it waits for no device.

        A row whose level is out of range, which only a CUDA tensor can hold, has -1.
        """
        if self._row_stoc_len is None:
            # Fills take their value from the host: a table of lengths would have to be copied over.
            lengths = torch.full_like(self.row_levels, -1, dtype=torch.int32)
            for i, level in enumerate(self.stoc_len_levels):
                lengths.masked_fill_(self.row_levels == i, level)
            self._row_stoc_len = lengths
        return self._row_stoc_len

    def level_counts(self) -> torch.Tensor:
        """(levels,) int64, the rows of every level, on the device; it waits for none."""
        return torch.stack([(self.row_levels == i).sum() for i in range(len(self.stoc_len_levels))])

    def __repr__(self) -> str:
        rows = self.row_levels.numel()
        return f"{_OWNER}({rows} rows, stoc_len_levels={self.stoc_len_levels})"
