"""Measures sc_matmul on CUDA, and torch's own products of the same shape beside it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from shapes import Case
from timing_cuda import (
    Call,
    captured,
    cold_copies,
    copies_for,
    extra_bytes,
    kernel_launches,
    median_seconds,
)

import scmp_kernels
from scmp_kernels import _C, sc_matmul

B1_RATE = 7.7e15  # bit multiply-accumulates per second: wgmma b1 AND-popcount, measured on an H200
PER_CALL_KNOBS = ("group_a", "stoc_len")  # free in each call with a prepared b
BASELINES = ("float32", "tf32", "bfloat16", "int8")


@dataclass
class Row:
    """One case on one kernel; seconds are medians, None where torch has no such product."""

    case: str
    kernel: str
    seconds: dict[str, float | None]  # "sc_matmul", its variants, the baselines
    sc_macs_per_second: float
    bound_fraction: float
    launches: int  # kernels of a warm call
    extra_bytes: int  # peak beyond inputs and output


@dataclass
class QuantizerRow:
    """fused_quantize_bipolar_perrow beside a copy of the same tensor."""

    shape: tuple[int, int]
    seconds: float
    bytes_per_second: float  # read and written
    copy_seconds: float
    copy_bytes_per_second: float
    copy_fraction: float  # of the copy's bandwidth


def b1_bound(case: Case) -> float:
    """SC-MAC/s that B1_RATE allows: L bits a product, and the s8 steps that undo complements.

    A signed product needs one such step per 16 positions (as long as 16 bits), beyond L = 128 two.
    """
    unipolar = case.kwargs.get("mode", "bipolar") == "unipolar"
    corrections = 0 if unipolar else 16 if case.stoc_len <= 128 else 32
    return B1_RATE / (case.stoc_len + corrections)


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Let float32 products run in tf32, or not."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@contextmanager
def _forced(kernel: str) -> Iterator[None]:
    """Force one CUDA kernel, or "auto"."""
    _C.set_cuda_kernel(kernel)
    try:
        yield
    finally:
        _C.set_cuda_kernel("auto")


def measure_baselines(
    copies: Sequence[tuple[torch.Tensor, ...]], repeat: int
) -> dict[str, float | None]:
    """Seconds of `a @ b.T` in torch, by the precision of its operands."""
    a, b = copies[0]
    seconds: dict[str, float | None] = dict.fromkeys(BASELINES)
    products = [partial(torch.matmul, x, y.mT) for x, y in copies]
    for name, allowed in (("float32", False), ("tf32", True)):
        with _tf32(allowed):
            seconds[name] = median_seconds(products, repeat)
    narrow = cold_copies(a.bfloat16(), b.bfloat16())
    seconds["bfloat16"] = median_seconds(
        [partial(torch.matmul, x, y.mT) for x, y in narrow], repeat
    )
    # What torch._int_mm takes.
    if a.dim() == 2 and a.shape[0] > 16 and a.shape[1] % 8 == 0 and b.shape[0] % 8 == 0:
        levels = cold_copies(*((x * 32).round().clamp(-127, 127).to(torch.int8) for x in (a, b)))
        seconds["int8"] = median_seconds(
            [partial(torch._int_mm, x, y.T) for x, y in levels], repeat
        )
    return seconds


def prepared_calls(case: Case, a: torch.Tensor, b: torch.Tensor) -> list[Call]:
    """Calls on a b prepared beforehand, as many as keep the prepared form out of the L2."""
    knobs = {k: v for k, v in case.kwargs.items() if k not in PER_CALL_KNOBS}
    free = {k: v for k, v in case.kwargs.items() if k in PER_CALL_KNOBS}
    before = torch.cuda.memory_allocated()
    operands = [(a, scmp_kernels.prepare(b, **knobs))]
    prepared_bytes = torch.cuda.memory_allocated() - before
    for _ in range(copies_for(a.nbytes + prepared_bytes) - 1):
        operands.append((a.clone(), scmp_kernels.prepare(b, **knobs)))
    return [partial(sc_matmul, x, y, **free) for x, y in operands]


def measure(
    case: Case,
    kernel: str,
    copies: Sequence[tuple[torch.Tensor, ...]],
    repeat: int,
    prepared: bool,
    graph: bool,
) -> Row:
    """Time one case on one kernel; ValueError where a forced kernel does not take it."""
    with _forced(kernel):
        variants = {"sc_matmul": [partial(sc_matmul, a, b, **case.kwargs) for a, b in copies]}
        call = variants["sc_matmul"][0]
        call()  # a refusal comes here, before anything is timed
        if prepared:
            variants["prepared"] = prepared_calls(case, *copies[0])
        seconds: dict[str, float | None] = {}
        for name, calls in variants.items():
            seconds[name] = median_seconds(calls, repeat)
            if graph:
                replays = [captured(call) for call in calls]
                seconds[f"{name}, graph"] = median_seconds(replays, repeat)
        rate = case.macs / seconds["sc_matmul"]
        return Row(
            case=case.name,
            kernel=kernel,
            seconds=seconds,
            sc_macs_per_second=rate,
            bound_fraction=rate / b1_bound(case),
            launches=kernel_launches(call),
            extra_bytes=extra_bytes(call),
        )


def measure_quantizer(repeat: int) -> QuantizerRow:
    """The per-row quantizer's bandwidth: reads float32, writes int16 codes and int8 signs."""
    x = torch.randn(4096, 4096, device="cuda")
    quantize = scmp_kernels.quant.fused_quantize_bipolar_perrow
    seconds = median_seconds([partial(quantize, y, 8) for (y,) in cold_copies(x)], repeat)
    pairs = cold_copies(x, torch.empty_like(x))
    copy_seconds = median_seconds([partial(out.copy_, y) for y, out in pairs], repeat)
    rate, copy_rate = x.numel() * (4 + 2 + 1) / seconds, x.numel() * (4 + 4) / copy_seconds
    return QuantizerRow(
        tuple(x.shape), seconds, rate, copy_seconds, copy_rate, copy_fraction=rate / copy_rate
    )


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    info = scmp_kernels.build_info()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "l2_mib": properties.L2_cache_size >> 20,
        "kernels": info["cuda_kernels"],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "scmp_kernels": info["version"],
        "nvcc": info["cuda"],
    }
