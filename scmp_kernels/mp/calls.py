"""Rows of recorded calls, by what thresholds are compared with."""

from typing import NamedTuple

import numpy as np
import torch

from scmp_kernels.mp.thresholds import Bucket, bucket_index

_SMALLEST_RANGE = 1e-8  # of a metric: below it all rows are alike


def normalised_metric(metric: torch.Tensor) -> np.ndarray:
    """(N,) float32: what `adaptive_classify_rows` compares with thresholds, with its arithmetic.

    inf where a row has level 0 whatever the thresholds, -inf where it has the last level.
    """
    m = metric.detach().float()
    finite = m[m.isfinite()]
    if not finite.numel():
        return np.full(len(m), np.inf, np.float32)
    least = finite.min()
    width = finite.max() - least
    keys = ((m - least) / width).nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    if width.isinf() or width.double() < _SMALLEST_RANGE:
        keys.fill_(torch.inf)
    return keys.cpu().numpy()


class Call(NamedTuple):
    """The rows of one call, which one call of `adaptive_classify_rows` classifies."""

    operator: str
    timestep: int
    total_timesteps: int
    block_idx: int | None
    total_blocks: int | None
    keys: np.ndarray
    """(N,) float32, `normalised_metric`."""
    macs: np.ndarray
    """(N,) int64, multiply-accumulates of every row."""
    errors: np.ndarray
    """(N, levels) float64."""

    def bucket(self, owner: str, timestep_buckets: int, layer_buckets: int) -> Bucket | None:
        """The bucket whose thresholds these rows get; None: the operator's default."""
        at = bucket_index(owner, "timestep", self.timestep, self.total_timesteps, timestep_buckets)
        if self.block_idx is None:
            return None
        total = 1 if self.total_blocks is None else self.total_blocks
        layer = bucket_index(owner, "block_idx", self.block_idx, total, layer_buckets)
        if self.total_blocks is None or timestep_buckets * layer_buckets == 1:
            return None
        return self.operator, at, layer
