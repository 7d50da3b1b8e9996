"""What a calibration is made from: metrics, multiply-accumulates and errors of rows, by call."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from scmp_kernels.mp.calls import Call, normalised_metric
from scmp_kernels.mp.checks import check_level_count, check_levels, check_name, check_readable
from scmp_kernels.mp.classifiers import compute_row_metric
from scmp_kernels.mp.measure import check_operands, measure_errors
from scmp_kernels.mp.progress import check_progress, progress_bar
from scmp_kernels.sc.rng import check_integer, one_line


class CalibrationRecorder:
    """Collects what `calibrate_thresholds` needs; ``with`` ends its progress bar.

    Args:
        stoc_len_levels: those of the AdaptiveMPConfig to calibrate: stream lengths in cycles,
            strictly descending, >= 0, at least two; a last level 0 skips rows.
        sample_rows: `record` measures the errors of about this many rows of a call, evenly spaced
            by metric, and interpolates those of the rest; >= 2. None: all rows.
        progress: True: a tqdm bar of the products measured; None: one on terminals, where tqdm is
            installed; False: none.
        expected_calls: of `record`, for the bar; None: not known.

    Raises:
        ValueError: an argument does not fit.
    """

    def __init__(
        self,
        stoc_len_levels: Sequence[int],
        *,
        sample_rows: int | None = 256,
        progress: bool | None = None,
        expected_calls: int | None = None,
    ) -> None:
        owner = type(self).__name__
        self.stoc_len_levels = check_levels(owner, "stoc_len_levels", stoc_len_levels)
        check_level_count(owner, "stoc_len_levels", self.stoc_len_levels, 2)
        if sample_rows is not None:
            sample_rows = check_integer(owner, "sample_rows", sample_rows, 2)
        if expected_calls is not None:
            expected_calls = check_integer(owner, "expected_calls", expected_calls, 0)
            expected_calls *= len(self.stoc_len_levels)
        self.calls: list[Call] = []
        self._sample_rows = sample_rows
        self._bar: Any = None
        self._progress = check_progress(owner, progress)
        self._products = expected_calls

    def __enter__(self) -> "CalibrationRecorder":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the progress bar; the records stay."""
        if self._bar is not None:
            self._bar.close()
        self._bar = None

    @torch.no_grad()
    def record(
        self,
        operator: str,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        metric: str | torch.Tensor = "amax",
        timestep: int = 0,
        total_timesteps: int = 1,
        block_idx: int | None = None,
        total_blocks: int | None = None,
        **knobs: Any,
    ) -> torch.Tensor:
        """Measure one product at every level and add its rows.

        The error of a row is its squared distance from the float product over the squared norm of
        the whole float product, so that a call's errors add up to its relative squared error. Rows
        that hold NaN or Inf count no error.

        Args:
            operator: whose thresholds the rows get.
            a: (N, D), or (B, N, D), whose B * N rows are classified together.
            b: (M, D), or (B, M, D), finite.
            metric: a name for `compute_row_metric`, or (N,) or (B, N) values: what the rows will be
                classified by.
            timestep, total_timesteps, block_idx, total_blocks: as of `adaptive_classify_rows`.
            knobs: of `sc_matmul`, without stream lengths.

        Returns:
            (N, M) or (B, N, M) float32, the float product, with which a forward pass can go on.

        Raises:
            ValueError: an argument does not fit.
            ImportError: progress=True, and tqdm is not installed.
        """
        owner = "CalibrationRecorder.record"
        check_operands(owner, a, b, knobs)
        if isinstance(metric, str):
            metric = compute_row_metric(a, metric)
        metric = _check_metric(owner, metric, a.shape[:-1]).to(a.device).reshape(-1)
        if self._bar is None:
            self._bar = progress_bar(
                owner, self._progress, total=self._products, desc="measuring", unit="product"
            )
        self._bar.set_postfix(operator=operator)
        exact, errors = measure_errors(
            a, b, metric, self.stoc_len_levels, self._sample_rows, knobs, self._bar.update
        )
        macs = b.shape[-2] * b.shape[-1]
        at = (timestep, total_timesteps, block_idx, total_blocks)
        self._add(owner, operator, metric, macs, errors, at)
        return exact

    def add(
        self,
        operator: str,
        metric: torch.Tensor,
        macs: int | torch.Tensor | np.ndarray | Sequence[int],
        errors: torch.Tensor | np.ndarray | Sequence[Sequence[float]],
        *,
        timestep: int = 0,
        total_timesteps: int = 1,
        block_idx: int | None = None,
        total_blocks: int | None = None,
    ) -> None:
        """Add rows whose errors were measured elsewhere.

        Args:
            operator: whose thresholds the rows get.
            metric: (N,) float, what one call of `adaptive_classify_rows` will classify.
            macs: multiply-accumulates of every row: (N,) integers >= 0, or one for all.
            errors: (N, levels), >= 0 and finite; what adds up to the error of the call.
            timestep, total_timesteps, block_idx, total_blocks: as of `adaptive_classify_rows`.

        Raises:
            ValueError: an argument does not fit.
        """
        owner = "CalibrationRecorder.add"
        shape = (metric.numel(),) if isinstance(metric, torch.Tensor) else ()
        metric = _check_metric(owner, metric, shape)
        at = (timestep, total_timesteps, block_idx, total_blocks)
        self._add(owner, operator, metric, macs, errors, at)

    def _add(
        self,
        owner: str,
        operator: str,
        metric: torch.Tensor,
        macs: Any,
        errors: Any,
        at: tuple[int, int, int | None, int | None],
    ) -> None:
        check_name(owner, "operator", operator)
        rows = len(metric)
        macs = _array(owner, "macs", macs, "integers >= 0")
        whole = macs.dtype.kind in "iu" and macs.shape in ((), (rows,))
        if not whole or (macs.astype(np.int64) < 0).any():
            raise ValueError(
                f"{owner}: macs must be an integer >= 0, or one for each of the {rows} rows, "
                f"got {one_line(macs.tolist())}"
            )
        errors = _array(owner, "errors", errors, "numbers")
        wanted = (rows, len(self.stoc_len_levels))
        if errors.shape != wanted or errors.dtype.kind not in "fiu":
            raise ValueError(
                f"{owner}: errors must be numbers of shape {wanted}, rows and levels, "
                f"got {errors.dtype} of shape {errors.shape}"
            )
        bad = errors[~((errors >= 0) & (errors < np.inf))]
        if bad.size:
            raise ValueError(f"{owner}: errors must be finite and >= 0, got {bad[0]}")
        macs = np.broadcast_to(macs.astype(np.int64), (rows,))
        call = Call(operator, *at, normalised_metric(metric), macs, errors.astype(np.float64))
        call.bucket(owner, 1, 1)  # checks where it is
        self.calls.append(call)


def _check_metric(owner: str, metric: Any, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a float tensor of a shape as it is."""
    if not isinstance(metric, torch.Tensor) or not metric.is_floating_point():
        shown = metric.dtype if isinstance(metric, torch.Tensor) else one_line(metric)
        raise ValueError(f"{owner}: metric must be a float tensor, got {shown}")
    check_readable(owner, "metric", metric)
    if metric.shape != torch.Size(shape):
        raise ValueError(
            f"{owner}: metric must have shape {tuple(shape)}, got {tuple(metric.shape)}"
        )
    return metric


def _array(owner: str, name: str, value: Any, items: str) -> np.ndarray:
    """Numbers of any kind as an array."""
    try:
        return value.detach().cpu().numpy() if torch.is_tensor(value) else np.asarray(value)
    except (TypeError, ValueError):
        raise ValueError(f"{owner}: {name} must be {items}, got {one_line(value)}") from None
