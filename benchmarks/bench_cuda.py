"""The CUDA half of bench_matmul.py: one table, one row per case and kernel.

Times are CUDA-event medians of whole calls, floats in and floats out, whose inputs the L2 does not
hold; those of torch (float32, tf32, bfloat16, int8) are of `a @ b.T` on the same shape.
"""

from collections.abc import Sequence
from dataclasses import asdict

from display import shown_call, shown_time
from measure_cuda import (
    BASELINES,
    QuantizerRow,
    Row,
    machine,
    measure,
    measure_baselines,
    measure_quantizer,
)
from shapes import Case
from timing_cuda import cold_copies
from tqdm import tqdm

BOUND_NOTE = (
    "b1 bound: the H200's measured wgmma b1 rate, 7.7e15 bit-MAC/s, over L + 16 bits a product\n"
    "(bipolar, L <= 128), L + 32 (bipolar, longer) or L (unipolar); on another GPU it only compares"
)


def _cells(row: Row) -> dict[str, str]:
    """A row's cells by the head of their column."""
    ms = {k: "-" if v is None else f"{v * 1e3:.4g}" for k, v in row.seconds.items()}
    ours = {k: v for k, v in ms.items() if k not in BASELINES}
    return {
        "case": row.case,
        "kernel": row.kernel,
        **{f"{name}, ms": value for name, value in ours.items()},
        "T SC-MAC/s": f"{row.sc_macs_per_second / 1e12:.3g}",
        "% of b1 bound": f"{row.bound_fraction * 100:.1f}",
        **{f"{name}, ms": ms[name] for name in BASELINES},
        "launches": str(row.launches),
        "extra MiB": f"{row.extra_bytes / 2**20:.1f}",
    }


def _shown_row(row: Row, head: bool) -> str:
    """The row's line of a markdown table that also reads as plain text, below its head if asked."""
    cells = _cells(row)
    lines = [cells.keys(), cells.values()] if head else [cells.values()]
    widths = [max(len(name), 8) for name in list(cells)[1:]]
    shown = []
    for case, *values in lines:
        padded = [f"{value:>{width}}" for value, width in zip(values, widths, strict=True)]
        shown.append("| " + " | ".join([f"{case:<18}", *padded]) + " |")
    if head:
        shown.insert(1, "|---" + "|---:" * (len(cells) - 1) + "|")
    return "\n".join(shown)


def _shown_quantizer(row: QuantizerRow) -> str:
    """Two lines of a table: the quantizer and the copy."""
    rows, columns = row.shape
    lines = [f"| {rows} x {columns} float32 | time | GB/s | % of copy_ |", "|---|---|---|---|"]
    for name, seconds, rate, fraction in (
        ("quantize per row", row.seconds, row.bytes_per_second, row.copy_fraction),
        ("copy_", row.copy_seconds, row.copy_bytes_per_second, 1.0),
    ):
        lines.append(f"| {name} | {shown_time(seconds)} | {rate / 1e9:.0f} | {fraction:.0%} |")
    return "\n".join(lines)


def run(
    cases: Sequence[Case], kernels: Sequence[str], repeat: int, prepared: bool, graph: bool
) -> dict[str, object]:
    """Measure and print everything; what the JSON report holds besides the cases."""
    here = machine()
    print(
        "{gpu}, {multiprocessors} multiprocessors, {l2_mib} MiB of L2; torch {torch}, CUDA {cuda}; "
        "scmp_kernels {scmp_kernels} (nvcc {nvcc})\n".format(**here)
    )
    rows: list[Row] = []
    refusals = []
    # No bar where nobody watches: a log would keep each of its states.
    with tqdm(
        total=len(cases) * (1 + len(kernels)) + 1, unit="run", leave=False, disable=None
    ) as bar:
        for case in cases:
            copies = cold_copies(*(x.cuda() for x in case.operands()))
            bar.set_postfix_str(f"{case.name} torch")
            baselines = measure_baselines(copies, repeat)
            bar.update()
            for kernel in kernels:
                bar.set_postfix_str(f"{case.name} {kernel}")
                try:
                    row = measure(case, kernel, copies, repeat, prepared, graph)
                except ValueError as error:
                    if kernel == "auto":
                        raise
                    refusals.append(f"{case.name}, {kernel}: {error}")
                else:
                    row.seconds |= baselines
                    rows.append(row)
                    tqdm.write(_shown_row(row, head=len(rows) == 1))
                bar.update()
        quantizer = measure_quantizer(repeat)
        bar.update()
    print("\n" + "\n".join(refusals + [BOUND_NOTE, ""] + [shown_call(case) for case in cases]))
    print("\n" + _shown_quantizer(quantizer))
    return {
        "machine": here,
        "rows": [asdict(row) for row in rows],
        "refusals": refusals,
        "quantizer": asdict(quantizer),
    }
