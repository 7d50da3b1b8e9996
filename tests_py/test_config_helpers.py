"""The config helpers: what they build, save and load, and what they refuse."""

import json
import random

import numpy as np
import pytest
import torch
from support import small_config

from scmp_kernels.sc import config_helpers as helpers
from scmp_kernels.sc.config import StreamConfig

Q = {"type": "sobol", "seed_type": "q"}
K = {"type": "sobol", "seed_type": "k"}
SEED = [1, 3, 5, 11]


def sng(rng_id, **extra):
    return {"rng_id": rng_id, "scramble": None, **extra}


@pytest.mark.parametrize(
    ("config", "pool"),
    [
        (helpers.make_sobol_simple_config(2, 3), [Q, K]),
        (helpers.make_sobol_custom_seed_config(2, 3, 4), [Q, K]),
        (
            helpers.make_sobol_custom_seed_config(2, 3, 4, q_seed=SEED, k_seed=np.array(SEED)),
            [{"type": "sobol", "seed": SEED}] * 2,
        ),
        (
            helpers.make_sobol_altseed_config(2, 3),
            [Q, {"type": "sobol", "seed": [1, 3, 7, 15, 31, 63, 127, 255]}],
        ),
        (
            helpers.make_sobol_altseed_config(2, 3, sc_prec=4, k_seed=SEED),
            [Q, {"type": "sobol", "seed": SEED}],
        ),
    ],
)
def test_helper_contents(config, pool):
    assert type(config) is StreamConfig
    assert config == {"rng_pool": pool, "sng": {"q": [sng(0)] * 2, "k": [sng(1)] * 3}}


def test_antithetic():
    config = helpers.make_sobol_antithetic_config(2, 3)
    assert config["rng_pool"] == [Q, K]
    assert config["sng"] == {"q": [sng(0)] * 2, "k": [sng(1, complement=True)] * 3}


def test_scrambling_is_random_per_position_and_repeatable():
    random.seed(5)
    config = helpers.make_sobol_custom_seed_config(20, 30, 6, use_scrambling=True)
    permutations = [s["scramble"] for s in (*config["sng"]["q"], *config["sng"]["k"])]
    assert len(permutations) == 50
    assert all(sorted(p) == list(range(6)) for p in permutations)
    assert len({tuple(p) for p in permutations}) > 25
    random.seed(5)
    shorter = helpers.make_sobol_custom_seed_config(20, 1, 6, use_scrambling=True)
    assert (
        shorter["sng"]["q"] == config["sng"]["q"]
        and shorter["sng"]["k"][0]["scramble"] == (config["sng"]["k"][0]["scramble"])
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: helpers.make_sobol_simple_config(-1, 2),
            "make_sobol_simple_config: q_e must be an integer >= 0, got -1",
        ),
        (
            lambda: helpers.make_sobol_antithetic_config(1, 2.5),
            "make_sobol_antithetic_config: k_e must be an integer >= 0, got 2.5",
        ),
        (
            lambda: helpers.make_sobol_altseed_config(1, 2, sc_prec=13),
            "make_sobol_altseed_config: sc_prec must be an integer in [2, 12], got 13",
        ),
        (
            lambda: helpers.make_sobol_altseed_config(1, 2, sc_prec=4, k_seed=[1, 1, 4, 1]),
            "make_sobol_altseed_config: k_seed[2] must be odd and in [1, 7], got 4",
        ),
        (
            lambda: helpers.make_sobol_custom_seed_config(1, 2, 4, q_seed=[1, 1]),
            "make_sobol_custom_seed_config: q_seed must have 4 entries, got 2",
        ),
        (
            lambda: helpers.make_sobol_custom_seed_config(1, 2, 4, use_scrambling=1),
            "make_sobol_custom_seed_config: use_scrambling must be True or False, got 1",
        ),
    ],
)
def test_helper_errors(call, message):
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == message


def test_save_and_load(tmp_path):
    config = helpers.make_sobol_custom_seed_config(3, 3, 5, use_scrambling=True)
    path = helpers.save_config(config, tmp_path / "new" / "c.json", model="vit", accuracy=0.5)
    assert path == tmp_path / "new" / "c.json"
    assert json.loads(path.read_text())["metadata"] == {"model": "vit", "accuracy": 0.5}
    loaded, metadata = helpers.load_config(str(path))
    assert type(loaded) is StreamConfig and loaded == config and loaded.digest == config.digest
    assert metadata == {"model": "vit", "accuracy": 0.5}
    assert helpers.load_config(helpers.save_config(dict(config), path)) == (config, {})


def test_save_errors(tmp_path):
    with pytest.raises(ValueError, match=r"^save_config: config must have the key 'sng'"):
        helpers.save_config({"rng_pool": [Q]}, tmp_path / "c.json")
    config = helpers.make_sobol_simple_config(1, 1)
    with pytest.raises(ValueError, match="^save_config: metadata must be what JSON can hold"):
        helpers.save_config(config, tmp_path / "c.json", tensor=torch.ones(1))
    assert not (tmp_path / "c.json").exists()


def _config(**change):
    return {"config": {**small_config(), **change}, "metadata": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "must be a JSON file: Expecting property name"),
        ([1], "the file must be a dict, got [1]"),
        ({"metadata": {}}, "the file must have the key 'config', got ['metadata']"),
        ({**_config(), "x": 1}, "the file may have the keys config, metadata, got 'x'"),
        ({**_config(), "metadata": 3}, "metadata must be a dict, got 3"),
        (_config(x=1), "config may have the keys rng_pool, sng, got 'x'"),
        (_config(rng_pool=[]), "config.rng_pool must be a list of generators, got []"),
        (_config(rng_pool=[{}]), "config.rng_pool[0] must have the key 'type', got []"),
        (
            _config(rng_pool=[{"type": "halton"}]),
            "config.rng_pool[0].type must be one of sobol, lfsr, true_random, got 'halton'",
        ),
        (
            _config(rng_pool=[{"type": "sobol", "taps": [0]}]),
            "config.rng_pool[0] may have the keys type, seed, seed_type, got 'taps'",
        ),
        (_config(sng={"q": []}), "config.sng must have the key 'k', got ['q']"),
        (_config(sng={"q": 1, "k": []}), "config.sng.q must be a list, got 1"),
        (
            _config(sng={"q": [], "k": [{"scramble": None}]}),
            "config.sng.k[0] must have the key 'rng_id', got ['scramble']",
        ),
        (
            _config(sng={"q": [{"rng_id": 1}], "k": []}),
            "config.sng.q[0].rng_id must be an integer in [0, 0], got 1",
        ),
        (
            _config(sng={"q": [{"rng_id": 0, "scramble": 2}], "k": []}),
            "config.sng.q[0].scramble must be a list or None, got 2",
        ),
        (
            _config(sng={"q": [{"rng_id": 0, "complement": 1}], "k": []}),
            "config.sng.q[0].complement must be a bool, got 1",
        ),
    ],
)
def test_malformed_files(tmp_path, content, message):
    path = tmp_path / "bad.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError) as caught:
        helpers.load_config(path)
    assert str(caught.value).startswith(f"load_config: {path}: {message}")
    assert "\n" not in str(caught.value)
