"""The RNG cache is never seen in a result: environment, eviction, clearing, threads, configs."""

import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import reference
import torch
from strategies import make_config
from support import assert_same_bits, environment, randn

from scmp_kernels import _C, clear_rng_cache, sc_matmul
from scmp_kernels.sc import config_helpers
from scmp_kernels.sc.config import StreamConfig

ENVIRONMENTS = [
    {},
    {"SC_OWEN_MODE": "counter"},
    {"SC_OWEN_MODE": "random"},
    {"SC_OWEN_MODE": "off"},
    {"SC_DISABLE_OWEN": "1"},
    {"SC_SCRAMBLE_MASKS": "4"},
    {"SC_SCRAMBLE_MASKS": "256"},
    {"SC_SCRAMBLE_RESCALE": "0"},
    {"SC_OWEN_MODE": "random", "SC_SCRAMBLE_MASKS": "16"},
]


@pytest.fixture(autouse=True)
def limit():
    """Start from an empty cache and put the limit back."""
    before = _C.rng_cache_stats()["limit"]
    clear_rng_cache()
    yield before
    _C.set_rng_cache_limit(before)
    clear_rng_cache()


def test_the_environment_takes_effect_on_the_next_call(kernel):
    a, b = randn(5, 200), randn(6, 200, seed=1)
    calls = [{"stoc_len": 100}, {"rng_levels": 100}, {"halve_bipolar_stoc_len": True}]
    for knobs in calls:
        for _ in range(2):
            for env in ENVIRONMENTS:
                with environment(env):
                    out = sc_matmul(a, b, **knobs)
                assert_same_bits(out, reference.sc_matmul(a, b, **knobs, env=env), f"({env})")


def test_every_knob_is_part_of_the_key(kernel):
    """Calls that share all but one knob, in turn and again in reverse."""
    a, b = randn(5, 70), randn(6, 70, seed=1)
    calls = [
        {"stoc_len": 64},
        {"stoc_len": 63},
        {"stoc_len": 64, "rng_levels": 128},
        {"stoc_len": 64, "rng_levels": 127},
        {"stoc_len": 64, "sc_prec": 7},
        {"stoc_len": 64, "sc_prec": 9},
        {"stoc_len": 64, "chunk_d": 32},
        {"stoc_len": 64, "chunk_d": 33},
        {"stoc_len": 64, "mode": "unipolar"},
        {"stoc_len": 64, "config": make_config(1, 70, 8)},
        {"stoc_len": 64, "config": make_config(2, 70, 8)},
        {"stoc_len": 64, "config": make_config(2, 32, 8), "chunk_d": 32},
    ]
    expected = [reference.sc_matmul(a, b, **knobs) for knobs in calls]
    for i in [*range(len(calls)), *reversed(range(len(calls)))]:
        assert_same_bits(sc_matmul(a, b, **calls[i]), expected[i], f"({calls[i]})")
    for depth in (1, 63, 64, 65, 70, 3):
        x, y = a[:, :depth], b[:, :depth]
        expected = reference.sc_matmul(x, y, stoc_len=64)
        assert_same_bits(sc_matmul(x, y, stoc_len=64), expected, f"(D = {depth})")


def test_stats_and_clear():
    a = randn(3, 20)
    empty = _C.rng_cache_stats()
    assert empty["entries"] == empty["bytes"] == 0 and empty["limit"] > 0
    assert set(empty) == {"entries", "bytes", "limit", "hits", "misses", "evictions"}
    sc_matmul(a, a)
    cold = _C.rng_cache_stats()
    assert cold["entries"] > 0 and cold["bytes"] > 0 and cold["misses"] > empty["misses"]
    sc_matmul(a, a)
    warm = _C.rng_cache_stats()
    assert (warm["entries"], warm["bytes"]) == (cold["entries"], cold["bytes"])
    assert warm["misses"] == cold["misses"] and warm["hits"] > cold["hits"]
    clear_rng_cache()
    assert _C.rng_cache_stats()["entries"] == _C.rng_cache_stats()["bytes"] == 0


@pytest.mark.parametrize("bytes_", [0, 1, 5_000, 50_000])
def test_a_small_limit_changes_no_bit(kernel, bytes_):
    a, b = randn(5, 70), randn(6, 70, seed=1)
    calls = [{"stoc_len": length, "chunk_d": c} for length in (50, 128, 256) for c in (0, 16)]
    expected = [sc_matmul(a, b, **knobs) for knobs in calls]
    _C.set_rng_cache_limit(bytes_)
    assert _C.rng_cache_stats()["bytes"] <= bytes_
    for _ in range(2):
        for knobs, value in zip(calls, expected, strict=True):
            assert_same_bits(sc_matmul(a, b, **knobs), value)
            assert _C.rng_cache_stats()["bytes"] <= bytes_


def test_eviction_is_counted_and_least_recently_used_goes_first():
    a = randn(3, 20)
    sc_matmul(a, a, stoc_len=10)
    one = _C.rng_cache_stats()["bytes"]
    before = _C.rng_cache_stats()["evictions"]
    _C.set_rng_cache_limit(3 * one)
    for length in range(10, 30):
        sc_matmul(a, a, stoc_len=length)
        sc_matmul(a, a, stoc_len=10)
    misses = _C.rng_cache_stats()["misses"]
    sc_matmul(a, a, stoc_len=10)
    stats = _C.rng_cache_stats()
    assert stats["misses"] == misses and stats["evictions"] > before and stats["bytes"] <= 3 * one


def test_a_bad_limit():
    with pytest.raises(ValueError, match="set_rng_cache_limit: bytes must be at least 0, got -1"):
        _C.set_rng_cache_limit(-1)


# --- configs -------------------------------------------------------------------------------------


def test_a_plain_dict_that_changes_is_never_stale(kernel):
    a, b = randn(3, 4), randn(5, 4, seed=1)
    config = make_config(3, positions=4, prec=6)
    knobs = {"sc_prec": 6, "stoc_len": 40}
    for position in range(4):
        config["sng"]["k"][position] = {"rng_id": 0, "complement": position % 2 == 0}
        config["rng_pool"][0] = {"type": "true_random", "seed": position}
        expected = reference.sc_matmul(a, b, config=config, **knobs)
        assert_same_bits(sc_matmul(a, b, config=config, **knobs), expected)


def test_equal_texts_share_an_entry_and_order_does_not_matter():
    a = randn(3, 4)
    config = make_config(3, positions=4, prec=8)
    sc_matmul(a, a, config=config)
    entries = _C.rng_cache_stats()["entries"]
    sc_matmul(a, a, config=dict(reversed(config.items())))
    assert _C.rng_cache_stats()["entries"] == entries


def test_a_digest_survives_clearing_and_eviction(limit):
    a, b = randn(3, 40), randn(5, 40, seed=1)
    config = StreamConfig(make_config(4, positions=40, prec=8))
    expected = reference.sc_matmul(a, b, config=config)
    for bytes_ in (limit, 0):
        _C.set_rng_cache_limit(bytes_)
        for _ in range(2):
            assert_same_bits(sc_matmul(a, b, config=config), expected)
            clear_rng_cache()
            assert_same_bits(torch.ops.scmp.sc_matmul(a, b, config=config.digest), expected)


def test_a_dead_digest_raises():
    a = randn(3, 4)
    config = StreamConfig(make_config(5, positions=4, prec=8))
    digest, text = config.digest, config.text
    sc_matmul(a, a, config=digest)
    del config
    gc.collect()
    with pytest.raises(ValueError, match=f"no live config has the digest {digest}"):
        sc_matmul(a, a, config=digest)
    revived = StreamConfig(json.loads(text))
    assert revived.digest == digest
    assert_same_bits(sc_matmul(a, a, config=digest), sc_matmul(a, a, config=text))


def test_a_config_made_anew_is_not_an_old_one():
    """A second life of a digest, or another config at the same address, takes its own streams."""
    a, b = randn(3, 10), randn(5, 10, seed=1)
    for seed in (1, 2, 1, 3, 2):
        plain = make_config(seed, positions=10, prec=8)
        config = StreamConfig(plain)
        assert_same_bits(sc_matmul(a, b, config=config), reference.sc_matmul(a, b, config=plain))
        del config


@pytest.mark.parametrize("depth", [8, 5000])
def test_a_warm_call_with_a_config_adds_nothing(depth):
    a = randn(2, depth)
    config = config_helpers.make_sobol_antithetic_config(depth, depth)
    sc_matmul(a, a, config=config)
    before = _C.rng_cache_stats()
    for _ in range(5):
        sc_matmul(a, a, config=config)
    after = _C.rng_cache_stats()
    assert (after["entries"], after["bytes"]) == (before["entries"], before["bytes"])
    assert after["misses"] == before["misses"]


# --- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_", [2**29, 20_000])
def test_four_threads_that_clear_evict_and_call(bytes_):
    _C.set_rng_cache_limit(bytes_)
    a, b = randn(5, 40), randn(6, 40, seed=1)
    configs = [StreamConfig(make_config(seed, positions=40, prec=8)) for seed in range(3)]
    calls = [{"stoc_len": length} for length in (10, 77, 128, 256)]
    calls += [{"chunk_d": 16, "stoc_len": 30}, {"mode": "unipolar"}]
    calls += [{"config": config, "stoc_len": 99} for config in configs]
    expected = [sc_matmul(a, b, **knobs) for knobs in calls]
    start = threading.Barrier(4)

    def work(seed):
        start.wait()
        for step in range(150):
            i = (step * (2 * seed + 1) + seed) % len(calls)
            if step % 10 == seed:
                clear_rng_cache()
            if step % 25 == seed:
                StreamConfig(make_config(seed, positions=40, prec=8))
            assert_same_bits(sc_matmul(a, b, **calls[i]), expected[i])

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(4)]:
            done.result()
