"""How times and calls are shown."""

from shapes import Case


def shown_time(seconds: float) -> str:
    """Seconds with a unit that fits."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def shown_call(case: Case) -> str:
    """The case as one would write the call."""
    shape = f"{case.n}x{case.d} by {case.m}x{case.d}"
    batch = f"{case.batch} x " if case.batch else ""
    shown = {k: "..." if k == "config" else repr(v) for k, v in case.kwargs.items()}
    return f"{case.name}: {batch}{shape} " + " ".join(f"{k}={v}" for k, v in shown.items())
