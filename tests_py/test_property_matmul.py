"""Every CPU kernel against the numpy reference, bit for bit, over shapes, strides and knobs."""

import json

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import calls, make_config, tensors
from support import KERNELS, assert_same_bits, benchmark_shapes, environment, forced, threads

from scmp_kernels import sc_matmul
from scmp_kernels.sc.config import StreamConfig


def check(a, b, knobs, env, kernels=KERNELS):
    expected = reference.sc_matmul(a, b, **knobs, env=env)
    with environment(env):
        for kernel in kernels:
            with forced(kernel):
                assert_same_bits(sc_matmul(a, b, **knobs), expected, f"({kernel} kernel)")


@pytest.mark.parametrize("case", benchmark_shapes().test_cases(), ids=lambda case: case.name)
def test_the_calls_that_are_benchmarked(case):
    check(*case.operands(), case.kwargs, {})


@settings(max_examples=300)
@given(calls())
def test_any_call(call):
    check(*call)


@settings(max_examples=30)
@given(st.data())
def test_the_operating_point(data):
    """8 bits, L = G = 128 and shorter, shapes past one tile, the chunks that users run."""
    n, m = data.draw(st.integers(1, 130)), data.draw(st.integers(1, 130))
    depth = data.draw(st.one_of(st.integers(1, 260), st.sampled_from((128, 256, 257))))
    a, b = data.draw(tensors((n, depth))), data.draw(tensors((m, depth)))
    knobs = {
        "halve_bipolar_stoc_len": True,
        "stoc_len": data.draw(st.sampled_from((None, 128, 127, 97, 64, 16, 1))),
        "chunk_d": data.draw(st.sampled_from((0, 1, 16, 72, 128, 300))),
        "group_a": data.draw(st.sampled_from((1, 4))),
        "group_b": data.draw(st.sampled_from((1, 32))),
    }
    with threads(data.draw(st.sampled_from((1, 2, 3)))):
        check(a, b, knobs, {})


@settings(max_examples=40)
@given(st.data())
def test_grid_and_length_pairs(data):
    """Every relation of L, G and base, at small precisions where it can be exhaustive in time."""
    prec = data.draw(st.integers(2, 5))
    length = data.draw(st.integers(1, 2**prec))
    levels = data.draw(st.integers(1, 2**prec))
    mode = data.draw(st.sampled_from(("bipolar", "unipolar")))
    a, b = data.draw(tensors((7, 11))), data.draw(tensors((5, 11)))
    env = {"SC_OWEN_MODE": data.draw(st.sampled_from(("bitrev", "counter", "random", "off")))}
    knobs = {"mode": mode, "sc_prec": prec, "stoc_len": length, "rng_levels": levels}
    check(a, b, knobs, env)


@settings(max_examples=40)
@given(st.data())
def test_a_config_in_all_its_forms(data):
    """A plain dict, a StreamConfig, JSON and a digest mean the same."""
    prec, depth = data.draw(st.integers(2, 10)), data.draw(st.integers(0, 20))
    config = make_config(data.draw(st.integers(0, 2**32 - 1)), depth, prec)
    a, b = data.draw(tensors((4, depth))), data.draw(tensors((3, depth)))
    knobs = {"sc_prec": prec, "stoc_len": data.draw(st.integers(1, 2**prec))}
    expected = reference.sc_matmul(a, b, **knobs, config=config)
    frozen = StreamConfig(config)
    for form in (config, frozen, frozen.digest, json.dumps(config, indent=2)):
        assert_same_bits(sc_matmul(a, b, **knobs, config=form), expected)
    for form in (frozen.digest, frozen.text):
        assert_same_bits(torch.ops.scmp.sc_matmul(a, b, **knobs, config=form), expected)
