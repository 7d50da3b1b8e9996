"""Measures convolutions and mixed stream lengths on CUDA: eager calls and CUDA graphs.

    python benchmarks/bench_layers.py [--repeat 50] [--json FILE]

Times are CUDA-event medians of whole calls whose inputs the L2 does not hold. Beside each stands
what it is compared with: torch's own float convolution, or the uniform call at the mean length.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from display import shown_time
from measure_cuda import machine
from timing_cuda import captured, cold_copies, extra_bytes, kernel_launches, median_seconds
from tqdm import tqdm

from scmp_kernels import prepare, sc_conv2d, sc_matmul

HALVED = {"halve_bipolar_stoc_len": True}


@dataclass
class Layer:
    """One call, how it is made from cold copies of its inputs, and what stands beside it."""

    name: str
    inputs: tuple[torch.Tensor, ...]
    call: Callable[..., torch.Tensor]
    beside: str
    baseline: Callable[..., torch.Tensor]


@dataclass
class Row:
    """Seconds are medians."""

    name: str
    eager: float
    graph: float
    launches: int
    extra_bytes: int
    beside: str
    baseline_eager: float
    baseline_graph: float


def convolutions() -> Iterator[Layer]:
    """8 x 64 x 56 x 56: pointwise, depthwise and dense, in both memory formats, and prepared."""
    x = torch.randn(8, 64, 56, 56, device="cuda")
    cases = {
        "1x1, 128 out, L=256": ((128, 64, 1, 1), {}, {}),
        "depthwise 3x3, L=256": ((64, 1, 3, 3), {"padding": 1, "groups": 64}, {}),
        "3x3, 128 out, L=128 halved": ((128, 64, 3, 3), {"padding": 1}, HALVED),
    }
    for name, (shape, geometry, knobs) in cases.items():
        weight = torch.randn(shape, device="cuda")
        plain = partial(torch.nn.functional.conv2d, **geometry)
        call = partial(sc_conv2d, **geometry, **knobs)
        yield Layer(name, (x, weight), call, "float32 conv2d", plain)
        last = x.contiguous(memory_format=torch.channels_last)
        yield Layer(f"{name}, channels_last", (last, weight), call, "float32 conv2d", plain)
        ready = prepare(weight, groups=geometry.get("groups", 1), **knobs)
        place = {k: v for k, v in geometry.items() if k != "groups"}
        prepared_call = partial(_with_weight, ready, place)
        beside = partial(_with_weight_plain, weight, geometry)
        yield Layer(f"{name}, prepared", (x,), prepared_call, "float32 conv2d", beside)


def _with_weight(weight, geometry, x):
    return sc_conv2d(x, weight, **geometry)


def _with_weight_plain(weight, geometry, x):
    return torch.nn.functional.conv2d(x, weight, **geometry)


def mixed_lengths() -> Iterator[Layer]:
    """2048 x 4096 x 4096 with a quarter of the rows at each of four lengths, in random order."""
    a, b = torch.randn(2048, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")
    lengths = torch.tensor([96, 64, 48, 32], device="cuda").repeat_interleave(512)
    shuffled = lengths[torch.randperm(2048, device="cuda")]
    levels = [96, 64, 48, 32]
    table = torch.tensor([levels.index(n) for n in shuffled.tolist()], device="cuda").view(-1, 1)
    uniform = partial(sc_matmul, stoc_len=60, **HALVED)
    for name, knobs in (
        ("mixed 96, 64, 48, 32 by row", {"stoc_len": shuffled}),
        ("the same, rung_table", {"rung_table": table, "level_lens": levels, "chunk_d": 4096}),
        ("one length, 60, by row", {"stoc_len": torch.full_like(lengths, 60)}),
    ):
        yield Layer(name, (a, b), partial(sc_matmul, **knobs, **HALVED), "uniform 60", uniform)


def measure(layer: Layer, repeat: int) -> Row:
    """Everything about one layer."""
    copies = cold_copies(*layer.inputs)
    times = []
    for call in (layer.call, layer.baseline):
        calls = [partial(call, *inputs) for inputs in copies]
        times.append(median_seconds(calls, repeat))
        times.append(median_seconds([captured(one) for one in calls[:8]], repeat))
    one = partial(layer.call, *layer.inputs)
    return Row(
        layer.name, times[0], times[1], kernel_launches(one), extra_bytes(one), layer.beside,
        times[2], times[3],
    )  # fmt: skip


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=50, help="calls per median")
    parser.add_argument("--json", type=Path, help="write the rows here")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(1, "bench_layers: needs a CUDA GPU, got none\n")
    here = machine()
    print("{gpu}; torch {torch}, CUDA {cuda}; scmp_kernels {scmp_kernels}\n".format(**here))
    print("| layer | eager | graph | launches | extra MiB | beside it | eager | graph |")
    print("|---|---:|---:|---:|---:|---|---:|---:|")
    rows = []
    with torch.no_grad():
        layers = [*convolutions(), *mixed_lengths()]
        for layer in tqdm(layers, leave=False):
            row = measure(layer, args.repeat)
            rows.append(row)
            shown = [shown_time(t) for t in (row.eager, row.graph)]
            shown += [str(row.launches), f"{row.extra_bytes / 2**20:.1f}", row.beside]
            shown += [shown_time(t) for t in (row.baseline_eager, row.baseline_graph)]
            tqdm.write(f"| {row.name} | " + " | ".join(shown) + " |")
    if args.json:
        report = {"machine": here, "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
