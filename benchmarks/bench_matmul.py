"""Times sc_matmul on every CPU kernel that this machine can run, or on CUDA, beside float32.

    python benchmarks/bench_matmul.py
    python benchmarks/bench_matmul.py --case square_halved small --kernel avx512 --json out.json
    python benchmarks/bench_matmul.py --device cuda --prepared --graph

On the CPU, every kernel's runs alternate with runs of `a @ b.T` in float32 on the same operands
and threads; both columns are medians over those pairs, so load from elsewhere falls on both.
Columns: time of the whole call, floats in and floats out; stochastic-computing multiply-accumulates
per second; float32's time; float32's time over ours (1 would be as fast as float32). The CUDA table
is described in bench_cuda.py.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import bench_cuda
import torch
from display import shown_call, shown_time
from shapes import Case, benchmark_cases, cuda_cases
from tqdm import tqdm

import scmp_kernels
from scmp_kernels import _C, sc_matmul

SHORTEST_SAMPLE = 2e-3  # seconds: faster calls are timed several at once
LONGEST_MEASUREMENT = 3.0  # seconds per kernel and case, once there are three samples
SLICE_CYCLES = 2**27  # stream cycles that the reference kernel is given


@dataclass
class Row:
    """One measurement; times are medians in seconds of the whole case."""

    case: str
    kernel: str
    seconds: float
    float32_seconds: float
    sc_macs_per_second: float
    ratio: float  # float32_seconds / seconds
    best_seconds: float
    samples: int
    measured_fraction: float  # below 1: a slice was timed, `seconds` is extrapolated from it


def calls_per_sample(call: Callable[[], object]) -> int:
    """How many calls make a sample of SHORTEST_SAMPLE; also warms up."""
    call()
    start = time.perf_counter()
    call()
    return max(1, round(SHORTEST_SAMPLE / max(1e-7, time.perf_counter() - start)))


def sample(call: Callable[[], object], calls: int) -> float:
    """Seconds per call."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def alternate(
    ours: Callable[[], object], theirs: Callable[[], object], repeat: int
) -> tuple[list[float], list[float]]:
    """Samples of both, taken in turn."""
    our_calls, their_calls = calls_per_sample(ours), calls_per_sample(theirs)
    samples: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    while len(samples[0]) < repeat:
        samples[0].append(sample(ours, our_calls))
        samples[1].append(sample(theirs, their_calls))
        enough = min(3, repeat)
        if len(samples[0]) >= enough and time.perf_counter() - start > LONGEST_MEASUREMENT:
            break
    return samples


def reference_slice(
    case: Case, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first rows of a, and of b where one row of a is still too much."""
    one_row = max(1, case.batch) * case.m * case.d * case.stoc_len
    rows = min(case.n, max(1, SLICE_CYCLES // one_row))
    columns = min(case.m, max(1, case.m * SLICE_CYCLES // (one_row * rows)))
    return a[..., :rows, :], b[..., :columns, :]


def measure(case: Case, kernel: str, repeat: int) -> Row:
    """Time one case on one kernel."""
    a, b = case.operands()
    sa, sb = reference_slice(case, a, b) if kernel == "reference" else (a, b)
    fraction = (sa.shape[-2] * sb.shape[-2]) / (a.shape[-2] * b.shape[-2])
    _C.set_cpu_kernel(kernel)
    try:
        ours, theirs = alternate(
            lambda: sc_matmul(sa, sb, **case.kwargs),
            lambda: a @ b.mT,
            min(repeat, 3) if kernel == "reference" else repeat,
        )
    finally:
        _C.set_cpu_kernel("auto")
    seconds = statistics.median(ours) / fraction
    float32_seconds = statistics.median(theirs)
    return Row(
        case=case.name,
        kernel=kernel,
        seconds=seconds,
        float32_seconds=float32_seconds,
        sc_macs_per_second=case.macs / seconds,
        ratio=float32_seconds / seconds,
        best_seconds=min(ours) / fraction,
        samples=len(ours),
        measured_fraction=fraction,
    )


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    info = scmp_kernels.build_info()
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": info["cpu_kernels"],
        "torch": torch.__version__,
        "scmp_kernels": info["version"],
        "compiler": info["compiler"],
        "load": round(os.getloadavg()[0], 1),
    }


def shown_row(row: Row) -> str:
    """One line of the table."""
    mark = "~" if row.measured_fraction < 1 else ""
    return (
        f"  {row.kernel:<10} {mark + shown_time(row.seconds):>10} "
        f"{row.sc_macs_per_second / 1e9:>10.3g} {shown_time(row.float32_seconds):>10} "
        f"{row.ratio:>9.2g}"
    )


def parse_args() -> argparse.Namespace:
    names = {"cpu": [c.name for c in benchmark_cases()], "cuda": [c.name for c in cuda_cases()]}
    kernels = {"cpu": _C.cpu_kernels(), "cuda": ["auto", *_C.cuda_kernels()]}
    parser = argparse.ArgumentParser(
        description="Time sc_matmul on every CPU kernel of this machine, or on CUDA, beside torch.",
        epilog=f"cases on the CPU: {', '.join(names['cpu'])}; on CUDA: {', '.join(names['cuda'])}",
    )
    parser.add_argument("--device", choices=names, default="cpu", help="default: cpu")
    parser.add_argument("--case", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument(
        "--kernel", nargs="+", metavar="NAME", help="default: all that run here; auto on CUDA"
    )
    parser.add_argument("--threads", type=int, help="CPU only; default: torch's choice")
    parser.add_argument("--repeat", type=int, default=21, help="most runs of each (default: 21)")
    parser.add_argument("--prepared", action="store_true", help="CUDA: also with b prepared")
    parser.add_argument("--graph", action="store_true", help="CUDA: also replayed in a CUDA graph")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    args = parser.parse_args()
    known = (("--case", args.case, names), ("--kernel", args.kernel, kernels))
    for option, chosen, allowed in known:
        for name in chosen or ():
            if name not in allowed[args.device]:
                one_of = ", ".join(allowed[args.device])
                parser.error(f"{option} on {args.device} must be one of {one_of}, got {name!r}")
    for name in ("threads", "repeat"):
        value = getattr(args, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    for name, device in (("threads", "cpu"), ("prepared", "cuda"), ("graph", "cuda")):
        if getattr(args, name) and args.device != device:
            parser.error(f"--{name} needs --device {device}, got {args.device}")
    if args.device == "cuda" and not (torch.cuda.is_available() and _C.cuda_kernels()):
        parser.error("--device cuda needs a GPU and a build with CUDA kernels")
    return args


def run_on_cpu(
    cases: Sequence[Case], kernels: Sequence[str], repeat: int, threads: int | None
) -> dict[str, object]:
    """Measure and print everything; what the JSON report holds besides the cases."""
    if threads:
        torch.set_num_threads(threads)
    here = machine()
    print(
        "{cpu}, {cpus} CPUs, {threads} threads, load {load}; torch {torch}; "
        "scmp_kernels {scmp_kernels} ({compiler})".format(**here)
    )
    print("~: the reference kernel is timed on a slice of rows and extrapolated in proportion")
    print(f"  {'kernel':<10} {'time':>10} {'GMAC/s':>10} {'float32':>10} {'ratio':>9}")
    rows = []
    with tqdm(total=len(cases) * len(kernels), unit="run", leave=False) as bar:
        for case in cases:
            tqdm.write(shown_call(case))
            for kernel in kernels:
                bar.set_postfix_str(f"{case.name} {kernel}")
                rows.append(measure(case, kernel, repeat))
                tqdm.write(shown_row(rows[-1]))
                bar.update()
    return {"machine": here, "rows": [asdict(row) for row in rows]}


def main() -> None:
    args = parse_args()
    on_cuda = args.device == "cuda"
    every = cuda_cases() if on_cuda else benchmark_cases()
    cases = [case for case in every if not args.case or case.name in args.case]
    if on_cuda:
        kernels = args.kernel or ["auto"]
        measured = bench_cuda.run(cases, kernels, args.repeat, args.prepared, args.graph)
    else:
        measured = run_on_cpu(cases, args.kernel or _C.cpu_kernels(), args.repeat, args.threads)
    if args.json:
        described = [{"name": c.name, "call": shown_call(c), "macs": c.macs} for c in cases]
        report = {"machine": measured["machine"], "cases": described, **measured}
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
