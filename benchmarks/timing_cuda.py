"""Measures calls on the current CUDA device: time, kernel launches, memory."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch.autograd import DeviceType

Call = Callable[[], object]

WARM_UP = 0.05  # seconds: clocks rise from idle, tables and workspaces are there
LONGEST_MEASUREMENT = 3.0  # seconds per contender, once there are three samples
MOST_COPIES = 64


def copies_for(input_bytes: int) -> int:
    """How many copies of a call's inputs to take in turn, so that the L2 has lost each one.

    Twice the L2 in all: between two uses of a copy, the others alone fill the cache.
    """
    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return min(MOST_COPIES, max(2, -(-2 * l2_bytes // max(1, input_bytes))))


def cold_copies(*inputs: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """`inputs` and clones of them, as many as copies_for says; strides are kept."""
    count = copies_for(sum(x.nbytes for x in inputs))
    return [inputs] + [tuple(x.clone() for x in inputs) for _ in range(count - 1)]


def _warm_up(calls: Sequence[Call]) -> float:
    """Make every call once and go on for WARM_UP; seconds per call then."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < WARM_UP:
        calls[count % len(calls)]()
        torch.cuda.synchronize()
        count += 1
    return (time.perf_counter() - start) / count


def median_seconds(calls: Sequence[Call], repeat: int) -> float:
    """Median seconds of at most `repeat` calls taken in turn from `calls`, each between two events.

    They are enqueued back to back. A call whose kernels end sooner than the host can launch them
    takes as long as its launches: a graph's replay shows what the GPU alone needs.
    """
    samples = max(min(3, repeat), min(repeat, int(LONGEST_MEASUREMENT / _warm_up(calls))))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(samples)]
    for pair in events:  # they come into being when they are recorded first
        for event in pair:
            event.record()
    torch.cuda.synchronize()
    for i, (start, end) in enumerate(events):
        start.record()
        calls[i % len(calls)]()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) * 1e-3


def captured(call: Call) -> Call:
    """The replay of a CUDA graph of one call; its inputs must outlive it."""
    call()  # what a first call uploads cannot be captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def kernel_launches(call: Call) -> int:
    """CUDA kernels that a warm call runs; memsets and copies are not counted."""
    call()
    torch.cuda.synchronize()
    cuda = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[cuda], acc_events=True) as profile:
        call()
        torch.cuda.synchronize()
    on_gpu = [event.name for event in profile.events() if event.device_type == DeviceType.CUDA]
    return sum(not name.startswith(("Memset", "Memcpy")) for name in on_gpu)


def extra_bytes(call: Callable[[], torch.Tensor]) -> int:
    """Most bytes that a warm call holds beyond its inputs and its output.

    As torch's caching allocator counts them, which rounds up and does not see device tables.
    """
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    output = call()
    torch.cuda.synchronize()
    with_output = torch.cuda.memory_allocated()
    del output
    return torch.cuda.max_memory_allocated() - with_output
