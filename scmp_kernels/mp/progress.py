"""Progress bars by tqdm, where it is installed."""

from typing import Any

from scmp_kernels.sc.rng import one_line


class _NoBar:
    """What stands in for a bar."""

    def update(self, n: int = 1) -> None: ...

    def set_postfix(self, **values: Any) -> None: ...

    def close(self) -> None: ...


def check_progress(owner: str, progress: Any) -> bool | None:
    """Return True, False or None as it is."""
    if progress is not None and not isinstance(progress, bool):
        raise ValueError(f"{owner}: progress must be True, False or None, got {one_line(progress)}")
    return progress


def progress_bar(owner: str, progress: bool | None, **options: Any) -> Any:
    """A tqdm bar, or something that has its `update`, `set_postfix` and `close`.

    Args:
        owner: what a message starts with.
        progress: True: a bar; None: one on terminals, where tqdm is installed; False: none.
        options: of tqdm.

    Raises:
        ImportError: True, and tqdm is not installed.
    """
    if progress is False:
        return _NoBar()
    try:
        from tqdm import tqdm
    except ImportError as error:
        if progress is None:
            return _NoBar()
        raise ImportError(f"{owner} with progress=True needs tqdm: pip install tqdm") from error
    return tqdm(disable=None if progress is None else False, **options)
