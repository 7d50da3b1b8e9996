"""Pictures of what the instruments recorded. matplotlib is imported when one is drawn."""

import math
from collections.abc import Iterable
from os import PathLike
from typing import Any

from scmp_kernels.mp.files import prepare_path


def _figure(owner: str, operators: Iterable[str]) -> tuple[Any, dict[str, Any]]:
    """A figure with one plot per operator; it needs no display and no pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"{owner} needs matplotlib: pip install matplotlib") from error

    operators = list(operators)
    if not operators:
        raise ValueError(f"{owner}: there must be entries to draw, got none")
    figure = Figure(figsize=(8, 1 + 2.5 * len(operators)), layout="constrained")
    axes = figure.subplots(len(operators), 1, squeeze=False)[:, 0]
    for operator, axis in zip(operators, axes, strict=True):
        axis.set_title(operator)
        axis.set_xlabel("block")
    return figure, dict(zip(operators, axes, strict=True))


def _blocks(blocks: Iterable[int | None]) -> list[int | None]:
    """Blocks in order, no block first."""
    return sorted(blocks, key=lambda block: (block is not None, block or 0))


def _name_blocks(axis: Any, blocks: list[int | None]) -> None:
    axis.set_xticks(range(len(blocks)), ["-" if block is None else str(block) for block in blocks])


def _save(figure: Any, path: str | PathLike | None) -> Any:
    if path is not None:
        figure.savefig(prepare_path(path))
    return figure


def stacked_levels(
    owner: str,
    rows: dict[str, dict[int | None, dict[int, int]]],
    path: str | PathLike | None,
) -> Any:
    """Bars of the fraction of rows per level.

    Args:
        owner: what a message starts with.
        rows: {operator: {block: {stream length: rows}}}.
        path: an image file to write, or None.
    """
    figure, axes = _figure(owner, rows)
    found = {length for blocks in rows.values() for sums in blocks.values() for length in sums}
    lengths = sorted(found, reverse=True)
    for operator, sums in rows.items():
        axis, blocks = axes[operator], _blocks(sums)
        totals = [sum(sums[block].values()) or 1 for block in blocks]
        bottom = [0.0] * len(blocks)
        for i, length in enumerate(lengths):
            heights = [
                sums[block].get(length, 0) / total
                for block, total in zip(blocks, totals, strict=True)
            ]
            label = f"stoc_len {length}"
            axis.bar(range(len(blocks)), heights, bottom=bottom, color=f"C{i}", label=label)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axis.set_ylabel("fraction of rows")
        _name_blocks(axis, blocks)
    handles, labels = next(iter(axes.values())).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    return _save(figure, path)


def metric_boxes(owner: str, rows: list[dict[str, Any]], path: str | PathLike | None) -> Any:
    """Boxes of a metric's distribution.

    Args:
        owner: what a message starts with.
        rows: entries with operator, block, min, q25, q50, q75 and max.
        path: an image file to write, or None.
    """
    by_operator: dict[str, dict[int | None, list[dict[str, Any]]]] = {}
    for row in rows:
        if math.isfinite(row["min"]) and math.isfinite(row["max"]):
            by_operator.setdefault(row["operator"], {}).setdefault(row["block"], []).append(row)
    figure, axes = _figure(owner, by_operator)
    for operator, entries in by_operator.items():
        axis, blocks = axes[operator], _blocks(entries)
        boxes = []
        for block in blocks:
            mine = entries[block]
            q25, q50, q75 = (
                math.fsum(row[name] for row in mine) / len(mine) for name in ("q25", "q50", "q75")
            )
            low, high = min(row["min"] for row in mine), max(row["max"] for row in mine)
            boxes.append({"whislo": low, "q1": q25, "med": q50, "q3": q75, "whishi": high})
        axis.bxp(boxes, positions=range(len(blocks)), showfliers=False)
        axis.set_ylabel("metric")
        _name_blocks(axis, blocks)
    return _save(figure, path)
