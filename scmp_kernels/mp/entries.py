"""What the instruments share: the block that a thread is in, tags, values on a device."""

import threading
from typing import Any

import torch

from scmp_kernels.mp.checks import check_name, check_tag


class _Current(threading.local):
    block_idx: int | None = None


_current = _Current()


def set_current_block_idx(i: int | None) -> None:
    """Set the block that instruments of this thread tag entries with.

    Args:
        i: index of the block, or None for no block.

    Raises:
        ValueError: `i` is neither.
    """
    _current.block_idx = check_tag("set_current_block_idx", "i", i)


def get_current_block_idx() -> int | None:
    """The block that this thread set last; None before."""
    return _current.block_idx


def check_tags(
    owner: str, timestep: Any, block_idx: Any, operator: Any
) -> tuple[int | None, int | None]:
    """Check what every entry is tagged with; return timestep and block."""
    check_name(owner, "operator", operator)
    timestep = check_tag(owner, "timestep", timestep)
    block_idx = check_tag(owner, "block_idx", block_idx)
    return timestep, get_current_block_idx() if block_idx is None else block_idx


def host_values(tensor: torch.Tensor) -> list[Any]:
    """The values of a tensor, whichever stream they are computed on."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return tensor.tolist()
