"""Tile-size tuning, which never changes a bit."""

from collections.abc import Iterator
from contextlib import contextmanager

from scmp_kernels import _C


@contextmanager
def det_kernel_tuning() -> Iterator[None]:
    """Within the scope, kernels of this thread use other tile sizes where they have a choice.

    Results are the same bits. Re-entrant; other threads are not affected.
    """
    _C.enter_det_tuning()
    try:
        yield
    finally:
        _C.leave_det_tuning()
