"""Thresholds for a budget of mean stream length, from recorded rows."""

import math
from collections.abc import Mapping
from fractions import Fraction
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from scmp_kernels.mp.calibration import CalibratedRows, Calibration
from scmp_kernels.mp.calls import Call
from scmp_kernels.mp.checks import MAX_LEVEL, check_dict, check_number
from scmp_kernels.mp.progress import check_progress, progress_bar
from scmp_kernels.mp.recorder import CalibrationRecorder
from scmp_kernels.mp.threshold_search import Curves, search
from scmp_kernels.mp.thresholds import Bucket
from scmp_kernels.sc.rng import check_integer, one_line

_OWNER = "calibrate_thresholds"
_WEIGHTS = 1e-6, 1e6  # of operators: nothing overflows or vanishes


class _Part(NamedTuple):
    """The calls that share thresholds, and what cuts through their rows cost and give."""

    operator: str
    bucket: Bucket | None
    calls: list[Call]
    curves: Curves
    weight: float  # of the error of one call

    def rows(self, cuts: np.ndarray, uniform: int) -> CalibratedRows:
        cost, error = self.curves.totals(cuts)
        macs = sum(int(call.macs.sum()) for call in self.calls)
        per_call = self.weight * len(self.calls)
        return CalibratedRows(
            operator=self.operator,
            bucket=self.bucket,
            thresholds=self.curves.thresholds[cuts].tolist(),
            rows=sum(len(call.keys) for call in self.calls),
            macs=macs,
            mean_length=int(cost) / macs if macs else 0.0,
            error=float(error) / per_call,
            uniform_error=float(self.curves.level_errors[uniform]) / per_call,
        )


def calibrate_thresholds(
    recorder: CalibrationRecorder,
    mean_length: float,
    path: str | PathLike | None = None,
    *,
    timestep_buckets: int = 1,
    layer_buckets: int = 1,
    operator_weights: Mapping[str, float] | None = None,
    candidates: int = 256,
    progress: bool | None = None,
) -> Calibration:
    """Choose the thresholds of an AdaptiveMPConfig with the least error within a budget.

    What is bounded is the mean stream length of the recorded rows, weighted by their
    multiply-accumulates: ``sum(macs * length) / sum(macs)``, which is what the streams cost. What
    is minimised is the mean over calls of their error. `adaptive_classify_rows` with the result
    gives the recorded rows exactly the mean length that is reported.

    The largest row of a call always has the longest streams, and so have rows that are all alike:
    no thresholds change that.

    Args:
        recorder: with rows of every operator to find thresholds for.
        mean_length: the budget, in cycles.
        path: a file to write the table to (`Calibration.save`), or None.
        timestep_buckets, layer_buckets: of the table. Calls recorded with `block_idx` and
            `total_blocks` have thresholds by bucket where there is more than one, others those of
            their operator; an operator without any of the latter gets a default for buckets
            without records, with the same balance of cost and error, outside of the mean.
        operator_weights: {operator: how much the error of its calls counts, 1e-6 to 1e6}; 1
            where left out.
        candidates: most thresholds to choose from in each set of rows, >= 2: quantiles.
        progress: True: a tqdm bar; None: one on terminals, where tqdm is installed; False: none.

    Returns:
        Calibration.

    Raises:
        ValueError: an argument does not fit, or the budget is less than the rows can cost.
        ImportError: progress=True, and tqdm is not installed.
        OSError: the file cannot be written.
    """
    if not isinstance(recorder, CalibrationRecorder):
        raise ValueError(
            f"{_OWNER}: recorder must be a CalibrationRecorder, got {one_line(recorder)}"
        )
    levels, calls = recorder.stoc_len_levels, [call for call in recorder.calls if len(call.keys)]
    total_macs = sum(int(call.macs.sum(dtype=object)) for call in calls)
    if not 0 < total_macs * levels[0] < 2**63:
        raise ValueError(
            f"{_OWNER}: recorder must have rows with multiply-accumulates, times the longest level "
            f"below 2**63 in all, got {total_macs} in {len(calls)} calls"
        )
    budget = check_number(_OWNER, "mean_length", mean_length, 0, MAX_LEVEL)
    counts = [
        check_integer(_OWNER, "timestep_buckets", timestep_buckets, 1),
        check_integer(_OWNER, "layer_buckets", layer_buckets, 1),
    ]
    weights = _weights(calls, operator_weights)
    candidates = check_integer(_OWNER, "candidates", candidates, 2)
    check_progress(_OWNER, progress)
    recorder.close()

    groups = _grouped(calls, *counts)
    defaults = {operator for operator, bucket in groups if bucket is None}
    unseen = _grouped([call for call in calls if call.operator not in defaults], 1, 1)
    steps = len(groups) + 1 + len(unseen)
    bar = progress_bar(_OWNER, progress, total=steps, desc="calibrating", unit="step")

    def part(operator: str, bucket: Bucket | None, members: list[Call]) -> _Part:
        curves = _curves(members, weights[operator], levels, candidates)
        bar.update()
        return _Part(operator, bucket, members, curves, weights[operator])

    try:
        parts = [part(*key, members) for key, members in groups.items()]
        found = search([p.curves for p in parts], math.floor(Fraction(budget) * total_macs))
        bar.update()
        if isinstance(found, int):
            raise ValueError(
                f"{_OWNER}: mean_length must be at least {_at_least(found, total_macs)}, the least "
                f"that thresholds can give the recorded rows, got {budget}"
            )
        unseen_defaults = {}
        for key, members in unseen.items():
            curves = part(*key, members).curves
            cuts = curves.choose(found.multiplier)
            unseen_defaults[key[0]] = curves.thresholds[cuts].tolist()
    finally:
        bar.close()

    totals = [p.curves.totals(cuts) for p, cuts in zip(parts, found.cuts, strict=True)]
    uniform = next(i for i, level in enumerate(levels) if level <= budget)
    result = Calibration(
        stoc_len_levels=list(levels),
        timestep_buckets=counts[0],
        layer_buckets=counts[1],
        budget=budget,
        mean_length=sum(int(cost) for cost, _ in totals) / total_macs,
        error=sum(float(error) for _, error in totals),
        error_bound=found.bound,
        uniform_length=levels[uniform],
        uniform_error=sum(float(p.curves.level_errors[uniform]) for p in parts),
        rows=[p.rows(cuts, uniform) for p, cuts in zip(parts, found.cuts, strict=True)],
        unseen_defaults=unseen_defaults,
    )
    if path is not None:
        result.save(path)
    return result


def _grouped(
    calls: list[Call], timestep_buckets: int, layer_buckets: int
) -> dict[tuple[str, Bucket | None], list[Call]]:
    """The calls that share thresholds, by operator and bucket."""
    groups: dict[tuple[str, Bucket | None], list[Call]] = {}
    for call in calls:
        bucket = call.bucket(_OWNER, timestep_buckets, layer_buckets)
        groups.setdefault((call.operator, bucket), []).append(call)
    return groups


def _weights(calls: list[Call], given: Any) -> dict[str, float]:
    """{operator: what a call's error counts}, the sum over all calls being 1."""
    name = "operator_weights"
    operators = [call.operator for call in calls]
    result = dict.fromkeys(operators, 1.0)
    for operator, weight in check_dict(_OWNER, name, {} if given is None else given).items():
        if operator not in result:
            raise ValueError(
                f"{_OWNER}: {name} must have keys among the recorded operators "
                f"({', '.join(result)}), got {one_line(operator)}"
            )
        entry = f"{name}[{one_line(operator)}]"
        result[operator] = check_number(_OWNER, entry, weight, *_WEIGHTS)
    total = sum(result[operator] for operator in operators)
    return {operator: weight / total for operator, weight in result.items()}


def _curves(calls: list[Call], weight: float, levels: list[int], candidates: int) -> Curves:
    keys, macs, errors = (
        np.concatenate(column)
        for column in zip(*((c.keys, c.macs, c.errors) for c in calls), strict=True)
    )
    return Curves(keys, macs, errors * weight, levels, candidates)


def _at_least(cost: int, macs: int) -> float:
    """The least float that is no less than cost / macs."""
    value = cost / macs
    return value if Fraction(value) * macs >= cost else math.nextafter(value, math.inf)
