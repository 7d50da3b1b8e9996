"""Prepared operands moved, copied and stored."""

import copy
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prepared_cases import (
    COPIES,
    KINDS,
    PLAIN_CONFIG,
    Layer,
    kinds,
    pair,
    split,
)
from strategies import calls
from support import (
    assert_same_bits,
    environment,
    randn,
)

from scmp_kernels import Prepared, prepare, sc_matmul
from scmp_kernels.sc.config import StreamConfig

# --- moved, copied, stored ------------------------------------------------------------------------

copies = pytest.mark.parametrize("how", COPIES)


def assert_is_a_copy(twin, prepared, how):
    assert type(twin) is Prepared and twin.spec == prepared.spec and twin.shape == prepared.shape
    knobs = ("granularity", "mode", "sc_prec", "chunk_d", "group_b", "rng_levels")
    for name in (*knobs, "halve_bipolar_stoc_len"):
        assert getattr(twin, name) == getattr(prepared, name), name
    if how != "state_dict":
        assert twin.expand == prepared.expand


@pytest.mark.parametrize("expand", [False, True])
@copies
@kinds
def test_a_copy_gives_the_same_bits(kind, how, expand):
    a, b = pair()
    prepared = prepare(b, **KINDS[kind], expand=expand)
    expected = sc_matmul(a, b, **KINDS[kind], stoc_len=50)
    twin = COPIES[how](prepared)
    assert_is_a_copy(twin, prepared, how)
    assert_same_bits(sc_matmul(a, twin, stoc_len=50), expected)
    twin.codes.zero_()  # a copy, not a view
    assert_same_bits(sc_matmul(a, prepared, stoc_len=50), expected)


@settings(max_examples=40)
@given(calls(), st.sampled_from(sorted(COPIES)))
def test_a_copy_of_anything(call, how):
    a, b, knobs, env = call
    fixed, free = split(knobs)
    with environment(env):
        twin = COPIES[how](prepare(b, **fixed))
        assert_same_bits(sc_matmul(a, twin, **free), sc_matmul(a, b, **knobs))


IN_ANOTHER_PROCESS = """
import sys, torch
from scmp_kernels import sc_matmul
a, prepared = torch.load(sys.argv[1], weights_only=False)
torch.save(sc_matmul(a, prepared, stoc_len=50), sys.argv[2])
"""


def test_another_process(tmp_path):
    """No digest that means nothing there."""
    a, b = pair()
    knobs = {"config": StreamConfig(PLAIN_CONFIG), "smooth_scales": torch.linspace(0.5, 2, 16)}
    torch.save((a, prepare(b, **knobs)), tmp_path / "in.pt")
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS, tmp_path / "in.pt", tmp_path / "out.pt"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert_same_bits(torch.load(tmp_path / "out.pt"), sc_matmul(a, b, **knobs, stoc_len=50))


def test_inside_a_model():
    a, b = pair()
    config = StreamConfig(PLAIN_CONFIG)
    model = torch.nn.Sequential(Layer(b, chunk_d=5))
    state = model.state_dict()
    assert {"0.bias", "0.weight.codes", "0.weight.scales", "0.weight._extra_state"} <= set(state)
    assert [name for name, _ in model.named_parameters()] == ["0.bias"]
    other = torch.nn.Sequential(Layer(torch.zeros(6, 16), config=config))
    assert other.load_state_dict(state).missing_keys == []
    assert_same_bits(other(a).detach(), sc_matmul(a, b, chunk_d=5, stoc_len=50))
    assert_same_bits(copy.deepcopy(model)(a).detach(), model(a).detach())


@pytest.mark.parametrize("state", ["", "{}", "[1", None, 3, {"shape": [6, 16]}])
def test_a_broken_extra_state(state):
    """Noticed when it is loaded or, at the latest, when it is used."""
    a, b = pair()
    prepared = prepare(b)
    broken_state = prepared.state_dict() | {"_extra_state": state}
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        prepared.load_state_dict(broken_state)
        sc_matmul(a, prepared)


def test_a_state_dict_with_a_hole():
    prepared = prepare(randn(6, 16))
    state = prepared.state_dict()
    del state["scales"]
    with pytest.raises(RuntimeError, match="scales"):
        prepared.load_state_dict(state)


CASTS = {
    "half": lambda module: module.half(),
    "bfloat16": lambda module: module.bfloat16(),
    "double": lambda module: module.double(),
    "float": lambda module: module.float(),
    "to": lambda module: module.to(torch.float16),
    "to-keyword": lambda module: module.to(device="cpu", dtype=torch.float64),
    "to-tensor": lambda module: module.to(torch.ones(1, dtype=torch.float16)),
    "type": lambda module: module.type(torch.float16),
}


@pytest.mark.parametrize("name", CASTS)
@kinds
def test_a_cast_changes_no_buffer(kind, name):
    a, b = pair()
    prepared = prepare(b, **KINDS[kind])
    before = {key: buffer.clone() for key, buffer in prepared.named_buffers()}
    prepared = CASTS[name](prepared)
    for key, buffer in prepared.named_buffers():
        assert_same_bits(buffer, before[key], key)
    assert_same_bits(sc_matmul(a, prepared), sc_matmul(a, b, **KINDS[kind]))


def test_a_cast_of_the_model_around_it():
    a, b = pair()
    layer = Layer(b).half()
    assert layer.bias.dtype == torch.float16
    assert_same_bits(sc_matmul(a, layer.weight), sc_matmul(a, b))


def test_train_eval_and_requires_grad_change_nothing():
    a, b = pair()
    prepared = prepare(b)
    for change in (prepared.train, prepared.eval, prepared.requires_grad_, prepared.zero_grad):
        change()
        assert_same_bits(sc_matmul(a, prepared), sc_matmul(a, b))


# --- what broke once ------------------------------------------------------------------------------


def test_a_gradient_outlives_the_prepared_and_its_environment(monkeypatch):
    a = randn(5, 16).requires_grad_()
    y = sc_matmul(a, prepare(randn(6, 16, seed=1), config=PLAIN_CONFIG))
    monkeypatch.setenv("SC_OWEN_MODE", "off")
    y.sum().backward()
    assert a.grad.shape == a.shape


@pytest.mark.parametrize(("mode", "shape"), [("unipolar", (0, 4)), ("bipolar", (0, 4))])
def test_the_gradient_of_nothing_is_zero(mode, shape):
    a = randn(2, 4).requires_grad_()
    sc_matmul(a, prepare(torch.ones(shape), mode=mode)).sum().backward()
    assert torch.equal(a.grad, torch.zeros(2, 4))


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("damage", ["spec", "no spec", "no scales"])
def test_a_failed_load_changes_nothing(strict, damage):
    a, b = pair()
    prepared, before = prepare(b), sc_matmul(a, b)
    state = prepare(b, sc_prec=7).state_dict()
    if damage == "spec":
        state["_extra_state"] = '{"mode": "unipolar"}'
    else:
        del state["_extra_state" if damage == "no spec" else "scales"]
    try:
        prepared.load_state_dict(state, strict=strict)
    except (ValueError, RuntimeError):
        pass
    else:
        assert not strict
    assert prepared.mode == "bipolar" and prepared.sc_prec == 8
    assert_same_bits(sc_matmul(a, prepared), before)


@pytest.mark.parametrize("config", ["{", 3, [1, 2], "null"])
def test_a_config_beside_a_prepared_is_judged(config):
    a, b = pair()
    with pytest.raises(ValueError, match="config"):
        sc_matmul(a, prepare(b), config=config)


def test_what_none_stands_for_may_be_said():
    a, b = pair()
    for halve in (False, True):
        prepared = prepare(b, halve_bipolar_stoc_len=halve)
        out = sc_matmul(a, prepared, rng_levels=128 if halve else 256)
        assert_same_bits(out, sc_matmul(a, prepared))
    with pytest.raises(ValueError, match="sc_prec"):
        sc_matmul(a, prepare(b, sc_prec=6), sc_prec=8.0)
