"""The best choice of cuts where few can be better than one that is known.

A part of a choice whose Lagrangian exceeds the least one by more than the gap between the known
error and the bound that the multiplier gives belongs to no better choice. What is left is a
multiple-choice knapsack, solved by merging Pareto fronts (Nemhauser and Ullmann, "Discrete dynamic
programming and capital allocation", 1969).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scmp_kernels.mp.threshold_search import Curves

_MOST_CHOICES = 10_000  # of one operator
_MOST_PAIRS = 1_000_000  # of a merge


def _front(costs: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Indices, by ascending cost, of those with a smaller error than all that cost no more."""
    order = np.lexsort((errors, costs))
    least = np.minimum.accumulate(errors[order])
    return order[np.concatenate([[True], least[1:] < least[:-1]])] if len(order) else order


def best_cuts(
    curves: "Sequence[Curves]", multiplier: float, limit: int, known: float
) -> list[np.ndarray] | None:
    """The choice of cuts with the least error within a limit of cost.

    Args:
        curves: one per operator (or bucket).
        multiplier: of the Lagrangian, error + multiplier * cost; >= 0.
        limit: the most that all may cost together.
        known: the error of some choice within the limit.

    Returns:
        One choice per curve, empty where none is better than the known one; None where there are
        too many to look at.
    """
    choices, totals = [], []
    least = 0.0
    for curve in curves:
        cost, error = curve.totals(curve.choose(multiplier))
        least += float(error + multiplier * cost)
    slack = 1e-12 * (abs(known) + multiplier * limit)  # the sums are rounded
    gap = known + multiplier * limit - least + slack
    for curve in curves:
        near = curve.near(multiplier, gap, _MOST_CHOICES)
        if near is None:
            return None
        costs, errors = curve.totals(near)
        front = _front(costs, errors)
        choices.append(near[front])
        totals.append((costs[front], errors[front]))
    # `cheapest` and `least`: what the curves that are still to come cost and score at least.
    cheapest = sum(int(costs[0]) for costs, _ in totals)
    highest = least + gap
    costs, errors, steps = np.zeros(1, np.int64), np.zeros(1), []
    for more_costs, more_errors in totals:
        if len(costs) * len(more_costs) > _MOST_PAIRS:
            return None
        cheapest -= int(more_costs[0])
        least -= float((more_errors + multiplier * more_costs).min())
        sums = (costs[:, None] + more_costs).ravel()
        error_sums = (errors[:, None] + more_errors).ravel()
        fits = sums + cheapest <= limit
        fits &= error_sums + multiplier * sums + least <= highest
        kept = fits.nonzero()[0]
        kept = kept[_front(sums[kept], error_sums[kept])]
        steps.append(np.divmod(kept, len(more_costs)))
        costs, errors = sums[kept], error_sums[kept]
    if not len(errors) or not errors[-1] < known:
        return []
    at, cuts = len(errors) - 1, []
    for own, (parents, picks) in zip(choices[::-1], steps[::-1], strict=True):
        cuts.append(own[picks[at]])
        at = parents[at]
    return cuts[::-1]
