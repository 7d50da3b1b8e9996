"""Many calls and many threads: memory that does not grow, and the bits of serial calls."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from strategies import make_config
from support import assert_same_bits, randn, threads

from scmp_kernels import _C, clear_rng_cache, prepare, sc_conv2d, sc_matmul
from scmp_kernels.sc import det_kernel_tuning
from scmp_kernels.sc.config import StreamConfig

MIB = 1 << 20


@pytest.fixture(autouse=True)
def small_cache():
    """A cache that is full after a few hundred configs, and the limit put back."""
    before = _C.rng_cache_stats()["limit"]
    clear_rng_cache()
    _C.set_rng_cache_limit(4 * MIB)
    yield
    _C.set_rng_cache_limit(before)
    clear_rng_cache()


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def one_call(i):
    """A call with a config that no other has, in one of its forms."""
    config = make_config(i, positions=9, prec=8)
    a, b = torch.ones(3, 9), torch.ones(4, 9)
    length = 1 + i % 255
    form = i % 5
    if form == 0:
        sc_matmul(a, b, config=config, stoc_len=length)
    elif form == 1:
        sc_matmul(a, b, config=StreamConfig(config), stoc_len=torch.tensor([length, 0, 256]))
    elif form == 2:
        sc_matmul(a, prepare(b, config=config, chunk_d=9), stoc_len=length)
    elif form == 3:
        sc_conv2d(a.view(1, 3, 3, 3), torch.ones(2, 3, 3, 3), stoc_len=length)
        a.requires_grad_()
        sc_matmul(a, b, config=config).sum().backward()
    else:
        config["sng"]["q"].pop()
        with pytest.raises(ValueError, match="sng.q must have D = 9 entries, got 8"):
            sc_matmul(a, b, config=config)


def test_memory_does_not_grow_with_changing_configs():
    warm = 1500  # the cache is full and the allocator has its arenas
    with threads(1):
        for i in range(warm):
            one_call(i)
        assert _C.rng_cache_stats()["evictions"] > 0
        before, configs = resident(), _C.registered_configs()
        for i in range(warm, warm + 10_000):
            one_call(i)
    assert _C.registered_configs() == configs
    grown = resident() - before
    assert grown < 6 * MIB, f"{grown} bytes in 10,000 calls"


def some_calls():
    """Calls that share a cache, by their arguments."""
    a, b = randn(9, 40), randn(11, 40, seed=1)
    configs = [StreamConfig(make_config(seed, positions=40, prec=8)) for seed in range(4)]
    yield from (lambda c=c: sc_matmul(a, b, config=c, stoc_len=99) for c in configs)
    yield from (lambda c=c: sc_matmul(a, b, config=c, chunk_d=40) for c in configs)
    yield from (lambda n=n: sc_matmul(a, b, stoc_len=n, chunk_d=16) for n in (10, 128, 256))
    yield lambda: sc_matmul(a, b, mode="unipolar", group_a=2)
    yield lambda: sc_matmul(a, b, stoc_len=torch.arange(9) * 32, halve_bipolar_stoc_len=False)
    yield lambda: sc_matmul(a, b, sc_prec=10, rng_levels=77)
    yield lambda: sc_conv2d(a.view(1, 1, 9, 40), b.view(1, 1, 11, 40), padding=3, stoc_len=64)
    prepared = prepare(b, config=configs[0], chunk_d=0)
    yield lambda: sc_matmul(a, prepared)
    yield lambda: prepare(b, config=configs[1]).scales


def test_eight_threads_give_the_bits_of_serial_calls():
    calls = list(some_calls())
    expected = [call() for call in calls]
    start = threading.Barrier(8)

    def work(thread):
        start.wait()  # all at a cold cache
        for step in range(12 * len(calls)):
            i = (step * (2 * thread + 1) + thread) % len(calls)
            if thread == 7 and step % 5 == 0:
                clear_rng_cache()
            if thread % 2:
                with det_kernel_tuning():
                    assert_same_bits(calls[i](), expected[i], f"(call {i})")
            else:
                assert_same_bits(calls[i](), expected[i], f"(call {i})")

    clear_rng_cache()
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, thread) for thread in range(8)]:
            done.result()
