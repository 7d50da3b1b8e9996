"""The search for thresholds: least error within a budget of cost.

Thresholds cut the rows of an operator, sorted by metric, into one range per level. With the
multiplier of the Lagrangian relaxation fixed, the best cuts of every operator are found exactly,
by dynamic programming in (cuts * levels) steps (Shoham and Gersho, "Efficient bit allocation for
an arbitrary set of quantizers", 1988). What is left of the budget is then spent greedily, and where
few choices can be better than that, the best of them is found (`exact_search`).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scmp_kernels.mp.exact_search import best_cuts

_MOST_STEPS = 200  # of the multiplier; each finds a new corner of a convex hull, 5 to 30 are usual


class Curves:
    """Cost and error of the rows of one operator (or bucket), by where thresholds cut them.

    Cut k leaves the rows with ``key >= thresholds[k]`` above it. A choice is one cut per threshold,
    non-decreasing: rows above the first have level 0, between the first two level 1, and so on.

    Args:
        keys: (N,) float32, normalised metrics; inf where every threshold gives level 0, -inf where
            every threshold gives the last level.
        macs: (N,) int64, multiply-accumulates of every row, >= 0.
        errors: (N, levels) float64.
        levels: stream lengths, strictly descending.
        candidates: most thresholds to consider, >= 2: quantiles of the keys.

    Attributes:
        thresholds: (cuts,) float32, descending from 1, the least that a threshold can leave above.
        level_errors: (levels,) float64, the error with all rows at one level.
    """

    def __init__(
        self,
        keys: np.ndarray,
        macs: np.ndarray,
        errors: np.ndarray,
        levels: Sequence[int],
        candidates: int,
    ) -> None:
        order = np.argsort(-keys, kind="stable")
        falling = -keys[order]
        finite = -falling[np.isfinite(falling)]
        ranks = np.linspace(0, len(finite) - 1, min(len(finite), candidates)).round().astype(int)
        one = np.ones(1, np.float32)  # the cut that leaves as few rows above it as can be
        self.thresholds = np.unique(np.concatenate([one, finite[ranks]]))[::-1]
        above = np.searchsorted(falling, -self.thresholds, side="right")
        row_macs = np.concatenate([[0], np.cumsum(macs[order])])
        row_errors = np.zeros((len(keys) + 1, len(levels)))
        np.cumsum(errors[order], axis=0, out=row_errors[1:])
        # A row above cut i instead of below it has level i instead of level i + 1. The total of a
        # choice is that of the last level for all rows, plus one entry of these per threshold.
        self._costs = -np.diff(levels)[:, None] * row_macs[above]
        self._errors = -np.diff(row_errors[above], axis=1).T
        self._last_cost = int(levels[-1] * row_macs[-1])
        self.level_errors = row_errors[-1]
        self._index = np.arange(len(levels) - 1)

    def cheapest(self) -> np.ndarray:
        """(levels - 1,) the choice with the fewest rows above every cut."""
        return np.zeros(len(self._index), np.int64)

    def choose(self, multiplier: float) -> np.ndarray:
        """(levels - 1,) the choice with the least error + multiplier * cost."""
        scores = self._errors + multiplier * self._costs
        for i in self._index[1:]:
            scores[i] += np.minimum.accumulate(scores[i - 1])
        choice, end = self.cheapest(), scores.shape[1]
        for i in self._index[::-1]:
            choice[i] = scores[i, :end].argmin()
            end = choice[i] + 1
        return choice

    def totals(self, choices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cost int64 and error float64 of choices (..., levels - 1)."""
        costs = self._costs[self._index, choices].sum(-1) + self._last_cost
        return costs, self._errors[self._index, choices].sum(-1) + self.level_errors[-1]

    def near(self, multiplier: float, gap: float, most: int) -> np.ndarray | None:
        """(choices, levels - 1) those whose error + multiplier * cost is within gap of the least.

        None where it is about more than `most` choices.
        """
        scores = self._errors + multiplier * self._costs
        rest = np.zeros_like(scores)  # the least score of the later thresholds, by this cut
        for i in self._index[-2::-1]:
            rest[i] = np.minimum.accumulate((scores[i + 1] + rest[i + 1])[::-1])[::-1]
        most_score = (scores[0] + rest[0]).min() + gap
        choices, sums = np.zeros((1, 0), np.int64), np.zeros(1)
        for i in self._index:
            totals = sums[:, None] + scores[i]
            fits = totals + rest[i] <= most_score
            if i:
                fits &= np.arange(len(self.thresholds)) >= choices[:, -1:]
            rows, cuts = fits.nonzero()
            if len(rows) > most:
                return None
            choices, sums = np.column_stack([choices[rows], cuts]), totals[rows, cuts]
        return choices

    def best_move(self, choice: np.ndarray, slack: int) -> tuple[float, int, np.ndarray] | None:
        """The move of one threshold, others pushed along, that lowers the error the most.

        Args:
            choice: (levels - 1,) where the thresholds are.
            slack: what the move may cost.

        Returns:
            Change of error, change of cost, new choice; None where no move lowers the error.
        """
        positions = np.arange(len(self.thresholds))[:, None]
        moved = np.stack(
            [
                np.where(
                    self._index < i,
                    np.minimum(choice, positions),
                    np.where(self._index > i, np.maximum(choice, positions), positions),
                )
                for i in self._index
            ]
        )
        cost, error = self.totals(choice)
        costs, errors = self.totals(moved)
        gains = np.where(costs - cost <= slack, errors - error, np.inf)
        at = np.unravel_index(gains.argmin(), gains.shape)
        if not gains[at] < 0:
            return None
        return float(gains[at]), int(costs[at] - cost), moved[at]


class Choice(NamedTuple):
    """A choice for every operator (or bucket)."""

    cuts: list[np.ndarray]
    cost: int
    error: float


class Found(NamedTuple):
    """What `search` found."""

    cuts: list[np.ndarray]
    multiplier: float
    """Error that one unit of cost would save."""
    bound: float
    """No choice of these cuts within the limit has a smaller error."""


def _choice(curves: list[Curves], cuts: list[np.ndarray]) -> Choice:
    totals = [curve.totals(cut) for curve, cut in zip(curves, cuts, strict=True)]
    return Choice(cuts, sum(int(cost) for cost, _ in totals), sum(float(e) for _, e in totals))


def search(curves: list[Curves], limit: int) -> Found | int:
    """Choose cuts with little error, and a cost within the limit.

    Args:
        curves: one per operator (or bucket).
        limit: the most that all may cost together.

    Returns:
        What was found; where every choice costs more than the limit, the least cost.
    """
    rich = _choice(curves, [curve.choose(0.0) for curve in curves])
    if rich.cost <= limit:
        return Found(rich.cuts, 0.0, rich.error)
    poor = _choice(curves, [curve.cheapest() for curve in curves])
    if poor.cost > limit:
        return poor.cost
    # The slope between a choice above the limit and one within it leads to a corner of the convex
    # hull between the two, until there is none.
    multiplier, bound = 0.0, rich.error
    for _ in range(_MOST_STEPS):
        multiplier = max(0.0, (poor.error - rich.error) / (rich.cost - poor.cost))
        middle = _choice(curves, [curve.choose(multiplier) for curve in curves])
        bound = max(bound, middle.error + multiplier * (middle.cost - limit))
        if not poor.cost < middle.cost < rich.cost:
            break
        if middle.cost <= limit:
            poor = middle
        else:
            rich = middle
    greedy = _choice(curves, _spend(curves, poor.cuts, limit - poor.cost))
    cuts = best_cuts(curves, multiplier, limit, greedy.error)
    if cuts is None:
        return Found(greedy.cuts, multiplier, min(bound, greedy.error))
    best = _choice(curves, cuts) if cuts else greedy
    return Found(best.cuts, multiplier, best.error)


def _spend(curves: list[Curves], cuts: list[np.ndarray], slack: int) -> list[np.ndarray]:
    """Make the move that lowers the error the most until no move within the slack does."""
    cuts = list(cuts)
    moves: list[Any] = [None] * len(curves)
    stale = list(range(len(curves)))
    while True:
        for i in stale:
            moves[i] = curves[i].best_move(cuts[i], slack)
        open_moves = [i for i, move in enumerate(moves) if move is not None]
        if not open_moves:
            return cuts
        best = min(open_moves, key=lambda i: moves[i][0])
        _, cost, cuts[best] = moves[best]
        slack -= cost
        # More slack opens moves everywhere, less closes those that cost too much.
        stale = [
            i
            for i, move in enumerate(moves)
            if i == best or cost < 0 or (move is not None and move[1] > slack)
        ]
