"""rng.py and the C++ generators are two implementations of one text: they must agree."""

import json

import numpy as np
import pytest
import reference
from strategies import make_config

from scmp_kernels import _C
from scmp_kernels.sc.rng import Sobol, create_rng

PRECISIONS = pytest.mark.parametrize("prec", range(2, 13))


def from_cpp(rng, prec, **sng):
    """The sequence of one generator, and of one sng on it."""
    entry = {"rng_id": 0, **sng}
    config = {"rng_pool": [rng], "sng": {"q": [entry], "k": []}}
    return _C.config_sequence(json.dumps(config), "q", 0, prec)


def from_python(rng, prec):
    rng = dict(rng)
    return create_rng(rng.pop("type"), prec, **rng).simulate().tolist()


def check(rng, prec):
    expected = from_python(rng, prec)
    assert len(expected) == 2**prec and from_cpp(rng, prec) == expected


@PRECISIONS
def test_sobol_defaults(prec):
    for rng in ({}, {"seed": None}, {"seed_type": "q"}, {"seed_type": "k"}):
        check({"type": "sobol", **rng}, prec)
    assert from_cpp({"type": "sobol"}, prec) == from_cpp({"type": "sobol", "seed_type": "q"}, prec)


@PRECISIONS
def test_sobol_seeds(prec):
    draw = np.random.default_rng(prec)
    ends = [[1] * prec, [2 ** (i + 1) - 1 for i in range(prec)]]
    for seed in ends + [[int(2 * draw.integers(2**i) + 1) for i in range(prec)] for _ in range(20)]:
        check({"type": "sobol", "seed": seed}, prec)
        values = from_cpp({"type": "sobol", "seed": seed, "seed_type": "k"}, prec)
        assert sorted(values) == list(range(2**prec))  # a seed wins over its type
        assert values == from_python({"type": "sobol", "seed": seed}, prec)


@PRECISIONS
def test_lfsr(prec):
    draw = np.random.default_rng(100 + prec)
    for _ in range(20):
        taps = [int(tap) for tap in draw.permutation(prec)[: draw.integers(1, prec + 1)]]
        for seed in (1, 2**prec - 1, int(draw.integers(1, 2**prec))):
            check({"type": "lfsr", "seed": seed, "taps": taps}, prec)


@PRECISIONS
def test_true_random(prec):
    draw = np.random.default_rng(200 + prec)
    seeds = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**53 + 1, 2**63 - 1]
    for seed in seeds + [int(seed) for seed in draw.integers(2**63 - 1, size=10)]:
        check({"type": "true_random", "seed": seed}, prec)


def test_true_random_by_cpython():
    """random.Random(seed).randint(0, 15), as CPython 3.2 and later draw it."""
    assert from_cpp({"type": "true_random", "seed": 7}, 4)[:8] == [10, 4, 12, 1, 2, 3, 11, 1]


@PRECISIONS
def test_scramble_and_complement(prec):
    draw = np.random.default_rng(300 + prec)
    base = 2**prec
    rng = {"type": "sobol", "seed_type": "k"}
    plain = from_cpp(rng, prec)
    assert from_cpp(rng, prec, scramble=None, complement=False) == plain
    assert from_cpp(rng, prec, scramble=list(range(prec))) == plain
    assert from_cpp(rng, prec, complement=True) == [base - 1 - value for value in plain]
    reverse = from_cpp(rng, prec, scramble=list(reversed(range(prec))))
    assert reverse == [int(f"{value:0{prec}b}"[::-1], 2) for value in plain]
    for _ in range(10):
        bits = [int(bit) for bit in draw.permutation(prec)]
        expected = [sum((value >> bit & 1) << i for i, bit in enumerate(bits)) for value in plain]
        assert from_cpp(rng, prec, scramble=bits) == expected
        complemented = from_cpp(rng, prec, scramble=bits, complement=True)
        assert complemented == [base - 1 - value for value in expected]


@PRECISIONS
def test_whole_configs(prec):
    for seed in range(6):
        config = make_config(seed, positions=5, prec=prec)
        text = json.dumps(config)
        for operand in "qk":
            for position in range(5):
                expected = reference.sequence(config, operand, position, prec).tolist()
                assert _C.config_sequence(text, operand, position, prec) == expected


def test_random_seeds_are_valid_for_the_operators():
    for prec in range(2, 13):
        check({"type": "sobol", "seed": Sobol.random_seed(prec)}, prec)
