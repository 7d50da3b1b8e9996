"""RNG configs that do not fit, each by the text of its ValueError, as a dict, JSON and on meta."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from support import assert_value_error

from scmp_kernels import _C, sc_matmul

GOOD = {
    "rng_pool": [{"type": "sobol"}],
    "sng": {"q": [{"rng_id": 0}] * 3, "k": [{"rng_id": 0}] * 3},
}
SOBOL, RANDOM = {"type": "sobol"}, {"type": "true_random", "seed": 1}
LFSR = {"type": "lfsr", "seed": 3, "taps": [0]}
RANGE = ".seed must be in [1, 255] for sc_prec=8"
BITS = ".taps must be distinct bits in [0, 7]"
PERMUTATION = ".scramble must be a permutation of 0..7 for sc_prec=8"


def refused(config, message, **knobs):
    """The config is refused with this text through every entry, on values and without."""
    text = json.dumps(config)
    for device in ("cpu", "meta"):
        a, b = torch.ones(2, 3, device=device), torch.ones(4, 3, device=device)
        for form in (config, text):
            call = lambda a=a, b=b, f=form: sc_matmul(a, b, config=f, **knobs)  # noqa: E731
            assert_value_error(call, f"sc_matmul: config{message}")
        call = lambda a=a, b=b: torch.ops.scmp.sc_matmul(a, b, config=text, **knobs)  # noqa: E731
        assert_value_error(call, f"sc_matmul: config{message}")


def test_the_good_one_is_good():
    a, b = torch.ones(2, 3), torch.ones(4, 3)
    assert torch.equal(sc_matmul(a, b, config=GOOD), sc_matmul(a, b, config=json.dumps(GOOD)))


@pytest.mark.parametrize(
    ("rng", "message"),
    [
        (3, " must be an object, got 3"),
        ({}, ' needs the key "type"'),
        ({"type": None}, ' needs the key "type"'),
        ({"type": "halton"}, '.type must be "sobol", "lfsr" or "true_random", got "halton"'),
        ({"type": ["sobol"]}, '.type must be "sobol", "lfsr" or "true_random", got ["sobol"]'),
        ({**SOBOL, "taps": []}, ' has the unknown key "taps"; allowed: type, seed, seed_type'),
        ({**SOBOL, "seed": 3}, ".seed must be a list, got 3"),
        ({**SOBOL, "seed": [1] * 7}, ".seed must have 8 entries for sc_prec=8, got 7"),
        ({**SOBOL, "seed": []}, ".seed must have 8 entries for sc_prec=8, got 0"),
        ({**SOBOL, "seed": [1, 1, 4] + [1] * 5}, ".seed[2] must be odd and in [1, 7], got 4"),
        ({**SOBOL, "seed": [1, 5] + [1] * 6}, ".seed[1] must be odd and in [1, 3], got 5"),
        ({**SOBOL, "seed": [-1] + [1] * 7}, ".seed[0] must be odd and in [1, 1], got -1"),
        ({**SOBOL, "seed_type": "v"}, '.seed_type must be "q" or "k", got "v"'),
        ({"type": "lfsr"}, ' needs the key "seed"'),
        ({"type": "lfsr", "seed": 3}, ' needs the key "taps"'),
        ({**LFSR, "seed": 0}, f"{RANGE}, got 0"),
        ({**LFSR, "seed": -5}, f"{RANGE}, got -5"),
        ({**LFSR, "seed": 256}, f"{RANGE}, got 256"),
        ({**LFSR, "seed": 2**40}, f"{RANGE}, got {2**40}"),
        ({**LFSR, "seed": True}, ".seed must be an integer, got true"),
        ({**LFSR, "seed": 1.0}, ".seed must be an integer, got 1.0"),
        ({**LFSR, "taps": 0}, ".taps must be a list, got 0"),
        ({**LFSR, "taps": []}, ".taps must name at least one bit, got []"),
        ({**LFSR, "taps": [1, 1]}, f"{BITS}, got 1"),
        ({**LFSR, "taps": [8]}, f"{BITS}, got 8"),
        ({**LFSR, "taps": [-2]}, f"{BITS}, got -2"),
        ({**LFSR, "taps": [2**40]}, f"{BITS}, got {2**40}"),
        ({**LFSR, "seed_type": "q"}, ' has the unknown key "seed_type"; allowed: type, seed, taps'),
        ({"type": "true_random"}, ' needs the key "seed"'),
        ({**RANDOM, "seed": -1}, ".seed must be in [0, 2**63-1], got -1"),
        ({**RANDOM, "seed": 2**63}, f".seed must be at most 2**63-1, got {2**63}"),
        ({**RANDOM, "seed": "1"}, '.seed must be an integer, got "1"'),
        ({**RANDOM, "taps": [0]}, ' has the unknown key "taps"; allowed: type, seed'),
    ],
)
def test_rng(rng, message):
    refused({**GOOD, "rng_pool": [{"type": "sobol"}, rng]}, f": rng_pool[1]{message}")


@pytest.mark.parametrize(
    ("sng", "message"),
    [
        (3, " must be an object, got 3"),
        ({}, ' needs the key "rng_id"'),
        ({"rng_id": 1}, ".rng_id must be in [0, 0] (rng_pool has 1 entries), got 1"),
        ({"rng_id": -1}, ".rng_id must be in [0, 0] (rng_pool has 1 entries), got -1"),
        ({"rng_id": "0"}, '.rng_id must be an integer, got "0"'),
        ({"rng_id": 0, "scramble": 7}, ".scramble must be a list, got 7"),
        (
            {"rng_id": 0, "scramble": []},
            ".scramble must be a permutation of the bits or null, got []",
        ),
        ({"rng_id": 0, "scramble": [1, 0]}, f"{PERMUTATION}, got [1, 0]"),
        (
            {"rng_id": 0, "scramble": [0, 1, 2, 3, 4, 5, 6, 6]},
            f"{PERMUTATION}, got [0, 1, 2, 3, 4, 5, 6, 6]",
        ),
        (
            {"rng_id": 0, "scramble": [1, 2, 3, 4, 5, 6, 7, 8]},
            f"{PERMUTATION}, got [1, 2, 3, 4, 5, 6, 7, 8]",
        ),
        ({"rng_id": 0, "complement": 1}, ".complement must be true or false, got 1"),
        (
            {"rng_id": 0, "seed": 1},
            ' has the unknown key "seed"; allowed: rng_id, scramble, complement',
        ),
    ],
)
@pytest.mark.parametrize("operand", ["q", "k"])
def test_sng(operand, sng, message):
    config = copy.deepcopy(GOOD)
    config["sng"][operand][1] = sng
    refused(config, f": sng.{operand}[1]{message}")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, ': config needs the key "rng_pool"'),
        ({"rng_pool": []}, ': config needs the key "sng"'),
        ({**GOOD, "x": 1}, ': config has the unknown key "x"; allowed: rng_pool, sng'),
        ({**GOOD, "rng_pool": {}}, ": rng_pool must be a list, got {}"),
        ({**GOOD, "sng": []}, ": sng must be an object, got []"),
        ({**GOOD, "sng": {"q": []}}, ': sng needs the key "k"'),
        (
            {**GOOD, "sng": {"q": [], "k": [], "v": []}},
            ': sng has the unknown key "v"; allowed: q, k',
        ),
        ({**GOOD, "sng": {"q": 3, "k": []}}, ": sng.q must be a list, got 3"),
    ],
)
def test_top_level(config, message):
    refused(config, message)


@pytest.mark.parametrize(
    ("q", "k", "chunk_d", "message"),
    [
        (2, 3, 0, " sng.q must have D = 3 entries, got 2"),
        (3, 4, 0, " sng.k must have D = 3 entries, got 4"),
        (3, 0, 0, " sng.k must have D = 3 entries, got 0"),
        (3, 3, 2, " sng.q must have chunk_d = 2 entries (or D = 3 where D <= chunk_d), got 3"),
        (2, 3, 2, " sng.k must have chunk_d = 2 entries (or D = 3 where D <= chunk_d), got 3"),
        (4, 5, 4, " sng.k must have chunk_d = 4 entries (or D = 3 where D <= chunk_d), got 5"),
    ],
)
def test_lengths(q, k, chunk_d, message):
    sng = {"rng_id": 0}
    refused({**GOOD, "sng": {"q": [sng] * q, "k": [sng] * k}}, message, chunk_d=chunk_d)


@pytest.mark.parametrize(
    "text", ["", "{", '{"a":\n', "nonsense", '{"rng_pool": [}', "[1, 2", '"\n"']
)
def test_not_json(text):
    with pytest.raises(ValueError, match="^sc_matmul: config: not valid JSON: ") as caught:
        sc_matmul(torch.ones(2, 3), torch.ones(4, 3), config=text)
    assert "\n" not in str(caught.value) and type(caught.value) is ValueError


def test_not_json_and_not_ascii():
    """The message must be text whatever it quotes."""
    for text in ("é", "{é", '{"a": 日本}', "\u0000", "x" * 10_000):
        with pytest.raises(ValueError, match="^sc_matmul: config: not valid JSON: ") as caught:
            sc_matmul(torch.ones(2, 3), torch.ones(4, 3), config=text)
        assert type(caught.value) is ValueError and len(str(caught.value)) < 500


def test_json_of_any_depth_is_refused_without_a_crash():
    code = (
        "import torch; from scmp_kernels import sc_matmul\n"
        "try: sc_matmul(torch.ones(2, 3), torch.ones(4, 3), config='[' * 10**6 + ']' * 10**6)\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("sc_matmul: config: ")


def test_not_an_object():
    for text in ("3", "null", "[]", '"x"'):
        assert_value_error(
            lambda text=text: sc_matmul(torch.ones(2, 3), torch.ones(4, 3), config=text),
            f"sc_matmul: config: config must be an object, got {text}",
        )


def test_python_types():
    a, b = torch.ones(2, 3), torch.ones(4, 3)
    for config, message in (
        (3, "a dict, a config from scmp_kernels.sc.config_helpers or None, got int"),
        ([], "a dict, a config from scmp_kernels.sc.config_helpers or None, got list"),
        (
            {"a": {1}},
            "a dict that JSON can hold, got one that it cannot: "
            "Object of type set is not JSON serializable",
        ),
    ):
        assert_value_error(
            lambda config=config: sc_matmul(a, b, config=config),
            f"sc_matmul: config must be {message}",
        )


def test_a_digest_of_no_live_config():
    for digest in ("sha256:", "sha256:" + "0" * 64):
        assert_value_error(
            lambda digest=digest: sc_matmul(torch.ones(2, 3), torch.ones(4, 3), config=digest),
            f"sc_matmul: config: no live config has the digest {digest}; "
            "keep the object that config_helpers returned, or pass JSON",
        )


def test_a_config_of_another_precision():
    """What was checked for one precision is checked again for the next."""
    a, b = torch.ones(2, 3), torch.ones(4, 3)
    config = json.dumps({**GOOD, "rng_pool": [{"type": "sobol", "seed": [1, 3, 5, 7]}]})
    for _ in range(2):
        sc_matmul(a, b, sc_prec=4, config=config)
        assert_value_error(
            lambda: sc_matmul(a, b, config=config),
            "sc_matmul: config: rng_pool[0].seed must have 8 entries for sc_prec=8, got 4",
        )


def test_config_sequence():
    text = json.dumps(GOOD)
    for args, message in (
        ((text, "v", 0, 8), 'config_sequence: operand must be "q" or "k", got "v"'),
        ((text, "q", 3, 8), "config_sequence: position must be in [0, 2], got 3"),
        ((text, "q", 0, 13), "config_sequence: sc_prec must be in [2, 12], got 13"),
        (("{}", "q", 0, 8), 'config: config needs the key "rng_pool"'),
    ):
        assert_value_error(lambda args=args: _C.config_sequence(*args), message)
