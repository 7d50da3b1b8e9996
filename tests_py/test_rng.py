"""rng.py alone: the golden generators, imported by file path, against values worked out by hand."""

import importlib.util
import random
import subprocess
import sys

import numpy as np
import pytest

PATH = importlib.util.find_spec("scmp_kernels.sc.rng").origin
_spec = importlib.util.spec_from_file_location("rng_alone", PATH)
rng = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(rng)

GENERATORS = {
    "lfsr": lambda: rng.LFSR(5, 4, [0, 1]),
    "true_random": lambda: rng.TrueRandom(7, 5),
    "sobol": lambda: rng.Sobol(5, seed_type="k"),
    "sobol-seed": lambda: rng.Sobol(4, seed=[1, 3, 5, 13]),
}


def test_needs_neither_torch_nor_the_package():
    code = (
        f"import runpy, sys; runpy.run_path({str(PATH)!r}); "
        "assert not {'torch', 'scmp_kernels'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- Sobol ---------------------------------------------------------------------------------------


def test_sobol_by_hand():
    # V = [100, 010, 001] in binary; XORed with index 0, 1, 0, 2, 0, 1, 0.
    assert rng.Sobol(3).simulate().tolist() == [0, 4, 6, 2, 3, 7, 5, 1]
    # seed [1, 3, 7]: V = [100, 110, 111].
    assert rng.Sobol(3, [1, 3, 7]).simulate().tolist() == [0, 4, 2, 6, 1, 5, 3, 7]
    assert rng.Sobol(1).simulate(5).tolist() == [0, 1, 1, 0, 0]


def test_sobol_past_its_period_skips_the_missing_vectors():
    # After t = 7 the lowest zero bit is 3 >= length: the value stays, then the pattern goes on.
    assert rng.Sobol(3).simulate(12)[7:].tolist() == [1, 1, 5, 7, 3]


@pytest.mark.parametrize("length", range(2, 13))
@pytest.mark.parametrize("seed_type", ["q", "k"])
def test_sobol_default_seeds(length, seed_type):
    expected = [1] * length
    if seed_type == "k":
        if length == 8:
            expected = [1, 1, 1, 1, 9, 1, 41, 255]
        else:
            if length >= 5:
                expected[4] = 9
            if length >= 7:
                expected[6] = 41
    sobol = rng.Sobol(length, seed_type=seed_type)
    assert sobol.seed == expected
    values = sobol.simulate()
    assert values.tolist() == rng.Sobol(length, expected).simulate().tolist()
    assert sorted(values.tolist()) == list(range(2**length))


@pytest.mark.parametrize("length", [2, 8, 12])
def test_sobol_random_seed(length):
    random.seed(3)
    seed = rng.Sobol.random_seed(length)
    random.seed(3)
    assert seed == rng.Sobol.random_seed(length)
    assert seed[0] == 1 and len(seed) == length
    assert all(s % 2 == 1 and 1 <= s < 2 ** (i + 1) for i, s in enumerate(seed))
    assert sorted(rng.Sobol(length, seed).simulate().tolist()) == list(range(2**length))


# --- LFSR, TrueRandom ----------------------------------------------------------------------------


def test_lfsr_by_hand():
    # 001 -> 100 (feedback 1 ^ 0) -> 010 (0 ^ 0) -> 101 (0 ^ 1) -> 110 (1 ^ 0) -> 111 (0 ^ 1)
    # -> 011 (1 ^ 1) -> 001 (1 ^ 1)
    lfsr = rng.LFSR(1, 3, [0, 1])
    assert lfsr.simulate(9).tolist() == [1, 4, 2, 5, 6, 7, 3, 1, 4]


def test_lfsr_of_maximal_length_visits_every_value_but_zero():
    values = rng.LFSR(93, 8, [0, 2, 3, 4]).simulate().tolist()
    assert sorted(values[:255]) == list(range(1, 256)) and values[255] == values[0] == 93


@pytest.mark.parametrize("seed", [0, 5, 31, 2**32 + 1, 2**63 - 1])
@pytest.mark.parametrize("length", [2, 8, 12])
def test_true_random_is_cpython(seed, length):
    draw = random.Random(seed)
    expected = [draw.randint(0, 2**length - 1) for _ in range(2**length)]
    assert rng.TrueRandom(seed, length).simulate().tolist() == expected


def test_true_random_leaves_the_global_generator_alone():
    random.seed(1)
    expected = random.random()
    random.seed(1)
    rng.TrueRandom(9, 8).simulate()
    assert random.random() == expected


# --- what all have in common ---------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATORS)
def test_step_simulate_and_reset_agree(name):
    make = GENERATORS[name]
    generator = make()
    stepped = [generator.step() for _ in range(50)]
    assert all(type(value) is int for value in stepped)
    values = generator.simulate(50)
    assert values.dtype == np.int64 and values.shape == (50,)
    assert values.tolist() == stepped
    after = [generator.step() for _ in range(3)]
    assert after == make().simulate(53)[50:].tolist()
    generator.reset()
    assert generator.step() == stepped[0]
    assert len(generator.simulate()) == 2**generator.length
    assert generator.simulate(0).shape == (0,)


def test_create_rng():
    assert isinstance(rng.create_rng("sobol", 6), rng.Sobol)
    k = rng.create_rng("sobol", 6, seed=None, seed_type="k")
    assert k.simulate().tolist() == rng.Sobol(6, seed_type="k").simulate().tolist()
    lfsr = rng.create_rng("lfsr", 4, seed=3, taps=[0, 3])
    assert lfsr.simulate().tolist() == rng.LFSR(3, 4, [0, 3]).simulate().tolist()
    draws = rng.create_rng("true_random", 4, seed=3)
    assert draws.simulate().tolist() == rng.TrueRandom(3, 4).simulate().tolist()


def test_numpy_integers_are_integers():
    lfsr = rng.LFSR(np.int64(5), np.int32(4), np.array([0, 1]))
    assert lfsr.simulate().tolist() == rng.LFSR(5, 4, [0, 1]).simulate().tolist()
    assert rng.Sobol(3, np.array([1, 3, 5])).seed == [1, 3, 5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rng.LFSR(0, 4, [0]), "LFSR: seed must be an integer in [1, 15], got 0"),
        (lambda: rng.LFSR(16, 4, [0]), "LFSR: seed must be an integer in [1, 15], got 16"),
        (lambda: rng.LFSR(True, 4, [0]), "LFSR: seed must be an integer in [1, 15], got True"),
        (lambda: rng.LFSR(1, 0, [0]), "LFSR: length must be an integer in [1, 30], got 0"),
        (lambda: rng.LFSR(1, 2.0, [0]), "LFSR: length must be an integer in [1, 30], got 2.0"),
        (lambda: rng.LFSR(1, 4, 3), "LFSR: taps must be a list of bit positions, got 3"),
        (lambda: rng.LFSR(1, 4, []), "LFSR: taps must be distinct and at least one, got []"),
        (
            lambda: rng.LFSR(1, 4, [1, 1]),
            "LFSR: taps must be distinct and at least one, got [1, 1]",
        ),
        (lambda: rng.LFSR(1, 4, [0, 4]), "LFSR: taps[1] must be an integer in [0, 3], got 4"),
        (
            lambda: rng.TrueRandom(-1, 4),
            f"TrueRandom: seed must be an integer in [0, {2**63 - 1}], got -1",
        ),
        (
            lambda: rng.TrueRandom(2**63, 4),
            f"TrueRandom: seed must be an integer in [0, {2**63 - 1}], got {2**63}",
        ),
        (lambda: rng.Sobol(31), "Sobol: length must be an integer in [1, 30], got 31"),
        (lambda: rng.Sobol(3, seed_type="v"), "Sobol: seed_type must be 'q' or 'k', got 'v'"),
        (lambda: rng.Sobol(3, 7), "Sobol: seed must be None or a list of 3 integers, got 7"),
        (lambda: rng.Sobol(3, [1, 1]), "Sobol: seed must have 3 entries, got 2"),
        (lambda: rng.Sobol(3, [3, 1, 1]), "Sobol: seed[0] must be 1, got 3"),
        (lambda: rng.Sobol(3, [1, 1, 4]), "Sobol: seed[2] must be odd and in [1, 7], got 4"),
        (lambda: rng.Sobol(3, [1, 5, 1]), "Sobol: seed[1] must be odd and in [1, 3], got 5"),
        (lambda: rng.Sobol(3, [1, 1, "x"]), "Sobol: seed[2] must be odd and in [1, 7], got 'x'"),
        (lambda: rng.Sobol(3).simulate(-1), "Sobol: num_cycles must be an integer >= 0, got -1"),
        (
            lambda: rng.Sobol.random_seed(0),
            "Sobol.random_seed: length must be an integer in [1, 30], got 0",
        ),
        (
            lambda: rng.create_rng("halton", 4),
            "create_rng: rng_type must be one of sobol, lfsr, true_random, got 'halton'",
        ),
        (
            lambda: rng.create_rng("sobol", 4, taps=[0]),
            "create_rng: sobol takes seed, seed_type, got taps",
        ),
        (lambda: rng.create_rng("lfsr", 4, seed=1), "create_rng: lfsr needs taps"),
        (lambda: rng.create_rng("true_random", 4), "create_rng: true_random needs seed"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == message


def test_messages_are_one_short_line():
    with pytest.raises(ValueError) as caught:
        rng.LFSR(np.zeros((50, 50)), 4, [0])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
