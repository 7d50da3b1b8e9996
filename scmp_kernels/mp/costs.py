"""Costs by operator, and what shorter streams save."""


def _costs(pairs: list[tuple[int, int]]) -> dict[str, int | float]:
    """The sum of (baseline, actual) pairs, and what is saved."""
    baseline, actual = (sum(column) for column in zip(*pairs, strict=True))
    if baseline:
        savings = 1 - actual / baseline
    else:
        savings = 0.0 if actual == 0 else float("-inf")
    return {"baseline": baseline, "actual": actual, "savings": savings}


class CostSummary(dict):
    """{operator: {"baseline", "actual", "savings"}}, savings = 1 - actual / baseline.

    Attributes:
        kinds: {operator: "compute" or "rows"}: whether the costs are those of `log_compute`
            (stream length times multiply-accumulates) or rows times stream length.
        totals: {kind: {"baseline", "actual", "savings"}}; kinds are never added.
    """

    def __init__(self, pairs: dict[str, dict[str, list[tuple[int, int]]]]) -> None:
        """`pairs` is {kind: {operator: (baseline, actual) pairs}}, in order of precedence."""
        super().__init__()
        self.kinds: dict[str, str] = {}
        self.totals: dict[str, dict[str, int | float]] = {}
        for kind, operators in pairs.items():
            mine = {name: costs for name, costs in operators.items() if name not in self}
            for name, costs in mine.items():
                self[name], self.kinds[name] = _costs(costs), kind
            if mine:
                self.totals[kind] = _costs([pair for costs in mine.values() for pair in costs])

    def text(self) -> str:
        """The summary as a table."""
        rows = [("operator", "cost", "baseline", "actual", "savings")]
        named = [(name, self.kinds[name], costs) for name, costs in self.items()]
        named += [("total", kind, costs) for kind, costs in self.totals.items()]
        for name, kind, costs in named:
            numbers = (str(costs["baseline"]), str(costs["actual"]), f"{costs['savings']:.2%}")
            rows.append((name, kind, *numbers))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )
