"""Streams, devices, CUDA graphs, caches and compilation on the GPU."""

import threading

import pytest
import torch
from support import randn

from scmp_kernels import _C, clear_rng_cache, sc_matmul

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
KNOBS = {"halve_bipolar_stoc_len": True, "chunk_d": 64}


def operands(n=70, m=150, depth=200, device="cuda"):
    return randn(n, depth).to(device), randn(m, depth, seed=1).to(device)


def expected(a, b, **knobs):
    return sc_matmul(a.cpu(), b.cpu(), **knobs)


def capture(run):
    """A graph of run() after a warm call, and its output."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    return graph, out


def test_a_side_stream_waits_for_its_producer():
    a, b = operands()
    want = expected(a, b, **KNOBS)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(a)
        torch.cuda._sleep(20_000_000)
        late.copy_(a)
        y = sc_matmul(late, b, **KNOBS)
    stream.synchronize()
    assert torch.equal(y.cpu(), want)


def test_a_graph_replays_with_new_inputs():
    a, b = operands()
    graph, out = capture(lambda: sc_matmul(a, b, **KNOBS))
    for seed in (5, 6):
        a.copy_(randn(70, 200, seed=seed))
        graph.replay()
        assert torch.equal(out.cpu(), expected(a, b, **KNOBS))


def test_a_graph_survives_clear_and_eviction():
    a, b = operands()
    graph, out = capture(lambda: sc_matmul(a, b, stoc_len=77))
    limit = _C.rng_cache_stats()["limit"]
    clear_rng_cache()
    try:
        _C.set_rng_cache_limit(1 << 16)
        for length in range(1, 40):  # tables that would reuse freed memory
            sc_matmul(a, b, stoc_len=length)
    finally:
        _C.set_rng_cache_limit(limit)
    torch.cuda.empty_cache()
    junk = [torch.full((1 << 20,), 255, dtype=torch.uint8, device="cuda") for _ in range(50)]
    a.copy_(randn(70, 200, seed=9))
    graph.replay()
    assert torch.equal(out.cpu(), expected(a, b, stoc_len=77))
    del junk


def test_a_cold_capture_says_to_warm_up():
    a, b = operands()
    clear_rng_cache()
    with pytest.raises(ValueError, match="once before capturing"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            sc_matmul(a, b, stoc_len=55)
    torch.cuda.synchronize()
    assert torch.equal(sc_matmul(a, b, stoc_len=55).cpu(), expected(a, b, stoc_len=55))


def test_a_capture_refuses_sync_checks(monkeypatch):
    a, b = operands()
    scales = torch.ones(200, device="cuda")
    sc_matmul(a, b, smooth_scales=scales)
    monkeypatch.setenv("SCMP_SYNC_CHECKS", "1")
    with pytest.raises(ValueError, match="SCMP_SYNC_CHECKS"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            sc_matmul(a, b, smooth_scales=scales)
    torch.cuda.synchronize()


def test_reduce_overhead():
    a, b = operands()
    compiled = torch.compile(lambda a, b: sc_matmul(a, b, **KNOBS) * 2, mode="reduce-overhead")
    for seed in range(4):
        x = randn(70, 200, seed=seed).cuda()
        assert torch.equal(compiled(x, b).cpu(), expected(x, b, **KNOBS) * 2)


def test_threads_on_their_own_streams():
    a, b = operands()
    lengths = (16, 33, 64, 100)
    want = [expected(a, b, stoc_len=length) for length in lengths]
    wrong = []

    def run(i):
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(30):
                if step % 10 == i:
                    clear_rng_cache()
                if not torch.equal(sc_matmul(a, b, stoc_len=lengths[i]).cpu(), want[i]):
                    wrong.append(i)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(lengths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_warm_call_does_not_sync():
    a, b = operands()
    sc_matmul(a, b, **KNOBS)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sc_matmul(a, b, **KNOBS)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_launches_of_a_warm_call():
    small = operands()
    # b's bits take 700 MiB, of which the workspace holds half at a time.
    large = [torch.randn(rows, 8192, device="cuda") for rows in (300, 5000)]
    halved = {"halve_bipolar_stoc_len": True}
    for (a, b), knobs, most in (
        (small, {}, 4),
        (small, {"chunk_d": 64}, 4),
        (small, {"granularity": "per_tensor"}, 4),
        (large, halved, 4),
    ):
        sc_matmul(a, b, **knobs)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            sc_matmul(a, b, **knobs)
            torch.cuda.synchronize()
        kernels = [e.key for e in profile.key_averages() if "scmp::" in e.key]
        count = sum(e.count for e in profile.key_averages() if "scmp::" in e.key)
        assert 0 < count <= most, kernels


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_current():
    a, b = operands(device="cuda:1")
    with torch.cuda.device(0):
        for _ in range(2):
            y = sc_matmul(a, b, **KNOBS)
            assert y.device == a.device
            assert torch.equal(y.cpu(), expected(a, b, **KNOBS))
            a0, b0 = a.to("cuda:0"), b.to("cuda:0")
            assert torch.equal(sc_matmul(a0, b0, **KNOBS).cpu(), y.cpu())
    with pytest.raises(ValueError, match="device"):
        sc_matmul(a.to("cuda:0"), b)
