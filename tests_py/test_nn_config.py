"""SCConfig: the knobs of sc_matmul, checked when it is made."""

import copy
import inspect
import json
import pickle
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
import torch
from support import assert_value_error, randn, small_config

from scmp_kernels import SCConfig, mp, sc_matmul
from scmp_kernels.nn import SCLinear
from scmp_kernels.sc.config import StreamConfig

NOT_OF_A_CONFIG = {"a", "b", "smooth_scales", "rung_table", "level_lens"}  # operands, by chunk


def test_it_has_the_knobs_and_defaults_of_sc_matmul():
    knobs = {
        name: parameter.default
        for name, parameter in inspect.signature(sc_matmul).parameters.items()
        if name not in NOT_OF_A_CONFIG
    }
    mine = {f.name: f.default for f in fields(SCConfig)}
    assert {name: mine.pop(name) for name in knobs} == knobs
    assert mine == {"mp": None, "operator": None, "enabled": True}


def test_it_is_frozen_and_copies():
    config = SCConfig(sc_prec=3, stoc_len=5, config=small_config(3))
    with pytest.raises(FrozenInstanceError):
        config.stoc_len = 7
    assert isinstance(config.config, StreamConfig)
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
    assert SCConfig(sc_prec=3, stoc_len=5, config=json.dumps(small_config(3))) == config
    assert repr(SCConfig(stoc_len=64, mode="unipolar")) == "SCConfig(mode='unipolar', stoc_len=64)"


def test_levels():
    assert SCConfig().levels() == [256]
    assert SCConfig(halve_bipolar_stoc_len=True).levels() == [128]
    assert SCConfig(stoc_len=7).levels() == [7]
    assert SCConfig(mp=mp.MPConfig([64, 16, 0])).levels() == [64, 16, 0]


@pytest.mark.parametrize("metric", ["x_row_max", "amax", "l2", "crest"])
def test_lengths_of_an_mp_config(metric):
    x = randn(2, 6, 8)
    config = mp.MPConfig([256, 32], [0.25, 0.75], mlp_metric=metric)
    name = "amax" if metric == "x_row_max" else metric
    expected = mp.classify_rows_by_metric(
        mp.compute_row_metric(x, name).flatten(), [256, 32], [0.25, 0.75]
    )
    found = SCConfig(mp=config).lengths(x, "mlp_metric")
    assert torch.equal(found, expected.row_stoc_len.view(2, 6))


def test_lengths_of_thresholds_go_by_operator():
    x = randn(6, 8)
    config = mp.AdaptiveMPConfig([256, 32], operator_default_thresholds={"up.qk": [0.5]})
    expected = mp.adaptive_classify_rows(mp.compute_row_metric(x), config, "up.qk")
    found = SCConfig(mp=config, operator="up").lengths(x, "qk_metric", "qk")
    assert torch.equal(found, expected.row_stoc_len)
    with pytest.raises(ValueError, match="operator must have thresholds"):
        SCConfig(mp=config).lengths(x, "mlp_metric")
    assert SCConfig(mp=config).for_module("up").operator == "up"
    assert SCConfig(mp=config, operator="down").for_module("up").operator == "down"
    assert SCConfig().for_module("up") == SCConfig()


def test_lengths_of_an_assignment():
    rows = mp.RowAssignment.from_levels(torch.tensor([0, 1, 1, 0, 0, 1]), [64, 8])
    found = SCConfig(mp=rows).lengths(randn(2, 3, 4), "mlp_metric")
    assert found.tolist() == [[64, 8, 8], [64, 64, 8]]
    assert_value_error(
        lambda: SCLinear(4, 2, config=SCConfig(mp=rows))(randn(5, 4)),
        "SCConfig: mp must have as many rows as a call, 5 here, got a RowAssignment of 6",
    )


def test_integers_of_numpy():
    config = SCConfig(sc_prec=np.int64(6), chunk_d=np.int32(4))
    assert config == SCConfig(sc_prec=6, chunk_d=4) and config.levels() == [64]


@pytest.mark.parametrize(
    ("knobs", "text"),
    [
        ({"stoc_len": 300}, "stoc_len must be in [1, 256] for sc_prec=8, got 300"),
        (
            {"stoc_len": torch.ones(3)},
            "stoc_len must be an int or None (mp has lengths by row), got tensor([1., 1., 1.])",
        ),
        ({"enabled": 1}, "enabled must be True or False, got 1"),
        (
            {"halve_bipolar_stoc_len": 1},
            "halve_bipolar_stoc_len must be True or False, got 1",
        ),
        ({"mode": 3}, "mode must be a str, got 3"),
        ({"sc_prec": "8"}, "sc_prec must be an integer, got '8'"),
        ({"chunk_d": 2.0}, "chunk_d must be an integer, got 2.0"),
        ({"group_a": True}, "group_a must be an integer, got True"),
        ({"operator": 1}, "operator must be a str or None, got 1"),
        (
            {"mp": [256, 64]},
            "mp must be an MPConfig, AdaptiveMPConfig, RowAssignment or None, got [256, 64]",
        ),
        (
            {"mp": mp.MPConfig([64, 8]), "stoc_len": 64},
            "stoc_len must be None with mp, got 64",
        ),
        (
            {"mp": mp.MPConfig([64, 8]), "mode": "unipolar"},
            "mode must be 'bipolar' with mp, got 'unipolar'",
        ),
        (
            {"mp": mp.MPConfig([256, 8]), "halve_bipolar_stoc_len": True},
            "mp must have levels of at most 128 cycles, got [256, 8]",
        ),
        (
            {"config": "sha256:00"},
            "config must be an RNG config (scmp_kernels.sc.config_helpers) as dict or JSON text, "
            "or None, got 'sha256:00'",
        ),
    ],
)
def test_errors(knobs, text):
    assert_value_error(lambda: SCConfig(**knobs), f"SCConfig: {text}")


@pytest.mark.parametrize(
    "knobs",
    [
        {"granularity": "per_column"},
        {"mode": "tripolar"},
        {"sc_prec": 13},
        {"chunk_d": -1},
        {"group_a": 0},
        {"group_b": 2, "granularity": "per_tensor"},
        {"rng_levels": 300},
        {"granularity": "per_head", "mode": "unipolar"},
        {"config": small_config(), "sc_prec": 4},
    ],
)
def test_the_operator_checks_the_rest(knobs):
    name = next(iter(knobs))
    with pytest.raises(ValueError, match=f"^SCConfig: .*{name}") as caught:
        SCConfig(**knobs)
    assert "\n" not in str(caught.value)
