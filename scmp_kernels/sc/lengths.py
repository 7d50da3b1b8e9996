"""Stream lengths that differ by row, as the operators take them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from scmp_kernels.sc.config import is_transformed


def longest_stream(sc_prec: int, mode: str, halve_bipolar_stoc_len: bool) -> int:
    """The most cycles that a stream can have under these knobs, checked or not."""
    typed = isinstance(sc_prec, int) and isinstance(mode, str)
    if not typed or not isinstance(halve_bipolar_stoc_len, bool) or not 2 <= sc_prec <= 12:
        return 0  # the operator will say so
    return 2**sc_prec // (2 if halve_bipolar_stoc_len and mode == "bipolar" else 1)


def _on_device(
    name: str, values: torch.Tensor, most: int, operand: torch.Tensor, op: str
) -> torch.Tensor:
    """`values` on the operand's device; checked first where they come from the CPU."""
    if not isinstance(values, torch.Tensor) or not isinstance(operand, torch.Tensor):
        return values  # the operator will say so
    device = operand.device
    if values.device == device or values.device.type != "cpu" or device.type == "meta":
        return values
    if values.numel() and not (is_compiling() or is_transformed(values)):
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > most:
            raise ValueError(
                f"{op}: {name} must lie in [0, {most}], got {low if low < 0 else high}"
            )
    return values.to(device)


def length_arguments(
    op: str,
    operand: torch.Tensor,
    stoc_len: int | torch.Tensor | None,
    rung_table: torch.Tensor | None,
    level_lens: Sequence[int] | None,
    longest: int,
) -> dict[str, Any]:
    """The operators' arguments for a call's stream lengths.

    Args:
        op: the operator's name, for errors.
        operand: a tensor of the call, on its device.
        stoc_len: one length, a tensor of lengths by row (or row and chunk), or None.
        rung_table, level_lens: indices by row and chunk, and the lengths they choose from.
        longest: the most cycles that a row can have.

    Returns:
        stoc_len, row_stoc_len, rung_table, level_lens.

    Raises:
        ValueError: a value is out of range, in a CPU tensor beside operands on another device (the
            operators check everything else).
    """
    row_stoc_len = None
    if isinstance(stoc_len, torch.Tensor):
        row_stoc_len = _on_device("stoc_len", stoc_len, longest, operand, op)
        stoc_len = None
    if rung_table is not None and isinstance(level_lens, Sequence):
        most = len(level_lens) - 1
        rung_table = _on_device("rung_table", rung_table, most, operand, op)
    return {
        "stoc_len": stoc_len,
        "row_stoc_len": row_stoc_len,
        "rung_table": rung_table,
        "level_lens": level_lens,
    }
