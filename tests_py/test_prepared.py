"""A prepared b: the bits of the direct call, however it was moved, copied, stored or compiled."""

import copy
import io
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
import reference
import torch
import torch.autograd.forward_ad as forward_ad
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_quant import as_float32, boundary
from strategies import calls, make_config, tensors
from support import (
    DTYPES,
    KERNELS,
    VARIABLES,
    assert_same_bits,
    benchmark_shapes,
    environment,
    forced,
    randn,
    threads,
)
from torch.export import Dim
from torch.library import opcheck

from scmp_kernels import Prepared, clear_rng_cache, prepare, sc_matmul
from scmp_kernels.sc import det_kernel_tuning
from scmp_kernels.sc.config import StreamConfig

OPS = torch.ops.scmp
HALVED = {"halve_bipolar_stoc_len": True}
PLAIN_CONFIG = make_config(1, positions=16, prec=8)

# One of each kind of Prepared; all take a (5, 16) `a` and the (6, 16) `b`, or a batch of three.
KINDS = {
    "plain": {},
    "halved": HALVED,
    "chunks": {"chunk_d": 5, "group_b": 4, **HALVED},
    "unipolar": {"mode": "unipolar", "group_b": 2},
    "tensor": {"granularity": "per_tensor"},
    "tensor-unipolar": {"granularity": "per_tensor", "mode": "unipolar"},
    "scales": {"smooth_scales": torch.linspace(0.5, 2, 16)},
    "scales-unipolar": {"mode": "unipolar", "smooth_scales": torch.linspace(0.5, 2, 16)},
    "config": {"config": PLAIN_CONFIG, "rng_levels": 100},
    "fine": {"sc_prec": 10, "rng_levels": 77},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def pair(batch=()):
    return randn(*batch, 5, 16), randn(*batch, 6, 16, seed=1)


def split(knobs):
    """What a Prepared fixes, and what stays free per call."""
    free = {name: knobs[name] for name in ("group_a", "stoc_len") if name in knobs}
    return {name: value for name, value in knobs.items() if name not in free}, free


def longest(knobs):
    halved = knobs.get("halve_bipolar_stoc_len", False) and knobs.get("mode") != "unipolar"
    return 2 ** (knobs.get("sc_prec", 8) - halved)


def check(a, b, knobs, env=None, lengths=(), kernels=KERNELS, expand=False):
    """Prepared and called on each kernel, once per stream length: the bits of the direct call."""
    fixed, free = split(knobs)
    repeated = {name: value for name, value in fixed.items() if name != "smooth_scales"}
    lengths = {free.pop("stoc_len", None), *lengths}
    with environment(env or {}):
        expected = {length: sc_matmul(a, b, **fixed, **free, stoc_len=length) for length in lengths}
        for kernel in kernels:
            with forced(kernel):
                prepared = prepare(b, **fixed, expand=expand)
                for length in lengths:
                    context = f"({kernel} kernel, stoc_len={length})"
                    out = sc_matmul(a, prepared, **free, stoc_len=length)
                    assert_same_bits(out, expected[length], context)
                    out = sc_matmul(a, prepared, **repeated, **free, stoc_len=length)
                    assert_same_bits(out, expected[length], f"{context} knobs repeated")


def assert_refused(call, *parts, operator="sc_matmul"):
    """A ValueError of one line that begins with the operator and holds these parts."""
    with pytest.raises(ValueError) as caught:
        call()
    text = str(caught.value)
    assert type(caught.value) is ValueError and "\n" not in text, text
    assert text.startswith(f"{operator}: "), text
    assert all(str(part) in text for part in parts), (text, parts)


# --- the bits of the direct call -----------------------------------------------------------------


@settings(max_examples=200)
@given(st.data())
def test_any_call(data):
    a, b, knobs, env = data.draw(calls())
    lengths = data.draw(st.sets(st.integers(1, longest(knobs)), max_size=2))
    check(a, b, knobs, env, lengths, expand=data.draw(st.booleans()))


@pytest.mark.parametrize("case", benchmark_shapes().test_cases(), ids=lambda case: case.name)
def test_the_calls_that_are_benchmarked(case):
    check(*case.operands(), case.kwargs)


FEW_ROWS = {
    "halved": HALVED,
    "halved-chunks": {"chunk_d": 32, "group_b": 3, "group_a": 2, **HALVED},
    "full": {},
    "full-short-chunks": {"chunk_d": 64, "stoc_len": 100},
    "unipolar": {"mode": "unipolar"},
    "unipolar-short": {"mode": "unipolar", "stoc_len": 60, "rng_levels": 128},
    "tensor": {"granularity": "per_tensor", "stoc_len": 33, **HALVED},
    "odd-grid": {"stoc_len": 100, "rng_levels": 77},
    "coarse": {"sc_prec": 4},
    "fine": {"sc_prec": 10, "stoc_len": 300},
}


@pytest.mark.parametrize("name", FEW_ROWS)
@pytest.mark.parametrize("kernel", KERNELS[1:])  # the reference treats all numbers of rows alike
def test_few_rows(kernel, name):
    for m, depth in ((1, 1), (70, 33), (67, 200)):
        a, b = randn(20, depth), randn(m, depth, seed=1)
        fixed, free = split(FEW_ROWS[name])
        with forced(kernel):
            prepared = prepare(b, **fixed)
            for n in range(1, 21):
                expected = sc_matmul(a[:n], b, **fixed, **free)
                assert_same_bits(sc_matmul(a[:n], prepared, **free), expected, f"{n=} {m=}")


@settings(max_examples=40)
@given(st.data())
def test_few_rows_against_many_columns(data):
    n, m = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 1200))
    depth = data.draw(st.one_of(st.integers(1, 400), st.sampled_from((128, 256, 384))))
    a, b = data.draw(tensors((n, depth))), data.draw(tensors((m, depth)))
    halve = data.draw(st.booleans())
    knobs = {
        "halve_bipolar_stoc_len": halve,
        "stoc_len": data.draw(st.sampled_from((None, 128, 127, 64, 1))),
        "chunk_d": data.draw(st.sampled_from((0, 16, 100, 128))),
        "group_b": data.draw(st.sampled_from((1, 32))),
    }
    with threads(data.draw(st.sampled_from((1, 2, 3)))):
        check(a, b, knobs, kernels=KERNELS[1:])


BATCHED = {
    "rows": {"group_b": 3},
    "rows-unipolar": {"mode": "unipolar", "group_b": 4},
    "head": {"granularity": "per_head", **HALVED},
    "head-short": {"granularity": "per_head", "stoc_len": 100},
    "tensor": {"granularity": "per_tensor"},
    "tensor-unipolar": {"granularity": "per_tensor", "mode": "unipolar"},
    "scales": {"granularity": "per_head", "smooth_scales": torch.linspace(0.5, 2, 16)},
}


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("rows", [1, 2, 17])
def test_batched(name, rows):
    a, b = randn(3, rows, 16), randn(3, 6, 16, seed=1)
    check(a, b, BATCHED[name], lengths=(64, 1))


LENGTHS = {
    "full grid": ({}, (256, 255, 128, 1)),
    "full grid, unipolar": ({"mode": "unipolar"}, (256, 255, 128, 1)),
    "full grid, per_tensor": ({"granularity": "per_tensor"}, (256, 200, 7)),
    "full grid, chunks": ({"chunk_d": 40}, (256, 255, 64)),
    "full grid, 5 bits": ({"sc_prec": 5}, (32, 31, 8)),
    "full grid, config": ({"config": make_config(2, positions=70, prec=8)}, (256, 255, 64)),
    "halved grid": (HALVED, (128, 127, 64, 1)),
    "odd grid": ({"rng_levels": 77}, (256, 128, 77, 1)),
}


@pytest.mark.parametrize("name", LENGTHS)
@pytest.mark.parametrize("expand", [False, True])
def test_one_prepared_serves_every_length(name, expand):
    """On the full grid a full-length sequence is unscrambled, a shorter one is not."""
    knobs, lengths = LENGTHS[name]
    a, b = randn(9, 70), randn(13, 70, seed=1)
    a[0], b[0] = a[0].sign(), b[0].sign()  # every code at the top
    check(a, b, knobs, lengths=lengths, expand=expand)


def test_group_a_stays_free():
    a, b = pair()
    prepared = prepare(b, group_b=2)
    for group_a in (1, 2, 5, 100):
        expected = sc_matmul(a, b, group_a=group_a, group_b=2)
        assert_same_bits(sc_matmul(a, prepared, group_a=group_a), expected)


@pytest.mark.parametrize("dtype_b", DTYPES)
def test_every_dtype(dtype_b):
    a, b = pair()
    b = b.to(dtype_b)
    prepared = prepare(b)
    for dtype_a in DTYPES:
        assert_same_bits(sc_matmul(a.to(dtype_a), prepared), sc_matmul(a.to(dtype_a), b))


def test_a_config_in_all_its_forms():
    a, b = pair()
    expected = sc_matmul(a, b, config=PLAIN_CONFIG)
    frozen = StreamConfig(PLAIN_CONFIG)
    forms = (PLAIN_CONFIG, frozen, frozen.digest, json.dumps(PLAIN_CONFIG, indent=2))
    for form in forms:
        prepared = prepare(b, config=form)
        assert_same_bits(sc_matmul(a, prepared), expected)
        for same in forms:
            assert_same_bits(sc_matmul(a, prepared, config=same), expected)


def test_a_config_need_not_outlive_the_preparation():
    a, b = pair()
    config = make_config(99, positions=16, prec=8)
    expected = sc_matmul(a, b, config=config)
    prepared = prepare(b, config=StreamConfig(config))
    config["rng_pool"].clear()
    clear_rng_cache()
    assert "sha256:" not in prepared.spec
    assert_same_bits(sc_matmul(a, prepared), expected)


@pytest.mark.parametrize("expand", [False, True])
def test_what_it_was_made_of_may_change(expand):
    a, b = pair()
    scales = torch.linspace(0.5, 2, 16)
    expected = sc_matmul(a, b, smooth_scales=scales)
    prepared = prepare(b, smooth_scales=scales, expand=expand)
    b.zero_()
    scales.fill_(3)
    assert_same_bits(sc_matmul(a, prepared), expected)


def test_caches_and_tuning_change_nothing():
    a, b = pair()
    expected = sc_matmul(a, b, chunk_d=7)
    prepared = prepare(b, chunk_d=7)
    clear_rng_cache()
    assert_same_bits(sc_matmul(a, prepared), expected)
    with det_kernel_tuning():
        assert_same_bits(sc_matmul(a, prepared), expected)


def test_rows_do_not_depend_on_the_batch():
    a, b = randn(40, 100), randn(50, 100, seed=1)
    prepared = prepare(b, chunk_d=32)
    whole = sc_matmul(a, prepared)
    for rows in (slice(0, 1), slice(3, 20), slice(39, 40)):
        assert_same_bits(sc_matmul(a[rows], prepared), whole[rows])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_inference_mode_change_nothing(dtype):
    a, b = pair()
    expected = sc_matmul(a, b)
    with torch.autocast("cpu", dtype=dtype):
        assert_same_bits(sc_matmul(a, prepare(b)), expected)
    with torch.inference_mode():
        assert_same_bits(sc_matmul(a, prepare(b)), expected)


# --- NaN and Inf, empty sizes --------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_inf_in_b_stay_in_their_group(kernel, bad):
    a, b = randn(7, 40), randn(6, 40, seed=1)
    b[4, 39] = bad
    for knobs, hit in (
        ({}, [4]),
        ({"mode": "unipolar"}, [4]),
        ({"group_b": 3}, [3, 4, 5]),
        ({"chunk_d": 16}, [4]),
        ({"stoc_len": 50, "rng_levels": 100}, [4]),
        ({"granularity": "per_tensor"}, range(6)),
        ({"granularity": "per_tensor", "mode": "unipolar"}, range(6)),
    ):
        fixed, free = split(knobs)
        out = sc_matmul(a, prepare(b, **fixed), **free)
        is_hit = torch.zeros(6, dtype=torch.bool)
        is_hit[list(hit)] = True
        assert torch.equal(out.isnan(), is_hit.expand(7, 6)), knobs
        assert_same_bits(out, sc_matmul(a, b, **knobs))


def test_nan_stays_in_its_head(kernel):
    a, b = pair(batch=(3,))
    b[1, 2, 3] = float("nan")
    out = sc_matmul(a, prepare(b, "per_head"))
    assert out[1].isnan().all() and not out[[0, 2]].isnan().any()


def test_nan_in_a(kernel):
    a, b = pair()
    prepared = prepare(b)
    a[2, 3] = float("inf")
    out = sc_matmul(a, prepared)
    assert out[2].isnan().all() and not out[[0, 1, 3, 4]].isnan().any()
    assert_same_bits(out, sc_matmul(a, b))


def test_the_smoothing_can_overflow():
    a, b, scales = randn(4, 20), randn(3, 20, seed=1), torch.ones(20)
    scales[7], b[1, 7] = 1e30, 1e20  # 1e20 * 1e30 is Inf
    out = sc_matmul(a, prepare(b, smooth_scales=scales))
    assert out[:, 1].isnan().all()
    assert_same_bits(out, sc_matmul(a, b, smooth_scales=scales))


EMPTY = [((0, 4), (3, 4)), ((2, 4), (0, 4)), ((2, 0), (3, 0)), ((0, 0), (0, 0))]
EMPTY_3D = [((0, 2, 4), (0, 3, 4)), ((2, 2, 4), (2, 0, 4)), ((2, 2, 0), (2, 3, 0))]


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize(("shape_a", "shape_b"), EMPTY + EMPTY_3D)
def test_empty_sizes(kernel, shape_a, shape_b, expand):
    a, b = torch.ones(shape_a), torch.ones(shape_b)
    knobs = [{}, {"mode": "unipolar", "group_b": 2}, {"granularity": "per_tensor"}]
    knobs += [{"granularity": "per_tensor", "mode": "unipolar"}]
    knobs += [{"smooth_scales": torch.ones(shape_b[-1])}]
    knobs += [{"granularity": "per_head"} if a.dim() == 3 else {"chunk_d": 3}]
    for fixed in knobs:
        prepared = prepare(b, **fixed, expand=expand)
        assert prepared.shape == shape_b and prepared.codes.shape == shape_b
        out = sc_matmul(a, prepared)
        assert_same_bits(out, torch.zeros(*shape_a[:-1], shape_b[-2]), str(fixed))
        assert_same_bits(sc_matmul(a, pickle.loads(pickle.dumps(prepared))), out)


# --- what a Prepared is --------------------------------------------------------------------------


def test_attributes():
    b = randn(6, 16)
    knobs = {"mode": "unipolar", "sc_prec": 6, "group_b": 2, "rng_levels": 50}
    prepared = prepare(b, **knobs)
    assert type(prepared) is Prepared and isinstance(prepared, torch.nn.Module)
    assert prepared.shape == (6, 16) and prepared.granularity == "per_row"
    for name, value in (*knobs.items(), ("chunk_d", 0), ("expand", False)):
        assert getattr(prepared, name) == value, name
    prepared = prepare(randn(3, 6, 16), "per_head", **HALVED, expand=True)
    assert prepared.shape == (3, 6, 16) and prepared.granularity == "per_head"
    assert prepared.mode == "bipolar" and prepared.halve_bipolar_stoc_len is True
    assert prepared.expand is True and prepare(b, chunk_d=5).chunk_d == 5
    assert isinstance(json.loads(prepared.spec), dict)


@pytest.mark.parametrize("expand", [False, True])
@kinds
def test_buffers(kind, expand):
    knobs = KINDS[kind]
    prepared = prepare(randn(6, 16), **knobs, expand=expand)
    stored = dict(prepared.named_buffers())
    assert list(prepared.parameters()) == []
    assert not any(buffer.requires_grad for buffer in stored.values())
    names = {"codes", "scales", "zero_points", "level_sums", "tensor_affine", "smooth_scales"}
    assert names == set(prepared.state_dict()) - {"_extra_state"}
    assert prepared.state_dict()["_extra_state"] == prepared.spec
    assert stored["codes"].dtype == torch.int16 and stored["codes"].shape == (6, 16)
    assert stored["scales"].dtype == torch.float32
    assert stored["tensor_affine"].dtype == torch.float64
    unipolar, tensor = knobs.get("mode") == "unipolar", knobs.get("granularity") == "per_tensor"
    assert (stored["tensor_affine"].numel() > 0) == tensor
    assert (stored["zero_points"].numel() > 0) == (unipolar and not tensor)
    assert (stored["level_sums"].numel() > 0) == unipolar
    assert (stored["smooth_scales"].numel() > 0) == ("smooth_scales" in knobs)


@pytest.mark.parametrize("mode", ["bipolar", "unipolar"])
@pytest.mark.parametrize("levels", [None, 100, 1])
def test_codes_are_signed_boundaries(kernel, mode, levels):
    b = randn(6, 16)
    q, qmax = levels_of(b, mode=mode)[:2]
    expected = np.sign(q) * boundary(q, qmax, levels or 256)
    codes = prepare(b, mode=mode, rng_levels=levels).codes
    assert_same_bits(codes, expected.astype(np.int16))


@kinds
def test_the_buffers_do_not_depend_on_the_kernel(kind):
    def buffers():
        return prepare(randn(6, 16), **KINDS[kind]).state_dict()

    with forced(KERNELS[0]):
        expected = buffers()
    for name in KERNELS[1:]:
        with forced(name):
            actual = buffers()
        assert actual.pop("_extra_state") == expected["_extra_state"]
        for key, buffer in actual.items():
            assert_same_bits(buffer, expected[key], f"{key} ({name} kernel)")


# --- refused -------------------------------------------------------------------------------------

OTHER_CONFIG = make_config(7, positions=16, prec=8)
MISMATCHES = {
    "granularity": ({}, "per_tensor", ("per_tensor", "per_row")),
    "mode": ({}, "unipolar", ("unipolar", "bipolar")),
    "sc_prec": ({"sc_prec": 6}, 7, (7, 6)),
    "chunk_d": ({"chunk_d": 5}, 7, (7, 5)),
    "group_b": ({"group_b": 2}, 3, (3, 2)),
    "rng_levels": ({"rng_levels": 100}, 77, (77, 100)),
    "halve_bipolar_stoc_len": ({}, True, ()),
    "config": ({"config": PLAIN_CONFIG}, OTHER_CONFIG, ()),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_other_knobs_than_it_was_made_for(name):
    made_for, asked, parts = MISMATCHES[name]
    a, b = pair()
    prepared = prepare(b, **made_for)
    assert_refused(lambda: sc_matmul(a, prepared, **{name: asked}), name, *parts)
    assert_refused(lambda: sc_matmul(a, prepare(b), **{name: asked}), name)


def test_knobs_left_out_are_taken_from_it():
    """A knob at the function's default counts as left out."""
    a, b = pair()
    made_for = {"granularity": "per_tensor", "mode": "unipolar", "sc_prec": 6, "rng_levels": 50}
    prepared = prepare(b, **made_for)
    expected = sc_matmul(a, b, **made_for)
    assert_same_bits(sc_matmul(a, prepared), expected)
    assert_same_bits(sc_matmul(a, prepared, "per_row", mode="bipolar", sc_prec=8), expected)
    assert_same_bits(sc_matmul(a, prepared, "per_tensor", sc_prec=6), expected)


@pytest.mark.parametrize("made_for", [{}, {"smooth_scales": torch.ones(16)}])
def test_smooth_scales_beside_it(made_for):
    a, b = pair()
    prepared = prepare(b, **made_for)
    assert_refused(lambda: sc_matmul(a, prepared, smooth_scales=torch.ones(16)), "smooth_scales")


OTHERWISE = {
    "SC_OWEN_MODE": ("random", "counter", "off"),
    "SC_DISABLE_OWEN": ("1",),
    "SC_SCRAMBLE_RESCALE": ("0",),
    "SC_SCRAMBLE_MASKS": ("8", "1"),
}
AS_UNSET = {"SC_OWEN_MODE": "bitrev", "SC_DISABLE_OWEN": "0"}
AS_UNSET |= {"SC_SCRAMBLE_RESCALE": "1", "SC_SCRAMBLE_MASKS": "64"}


@pytest.mark.parametrize("name", VARIABLES)
@pytest.mark.parametrize("expand", [False, True])
def test_another_environment(name, expand, monkeypatch):
    a, b = pair()
    knobs = {"rng_levels": 100}
    prepared = prepare(b, **knobs, expand=expand)
    expected = sc_matmul(a, b, **knobs)
    for value in OTHERWISE[name]:
        monkeypatch.setenv(name, value)
        assert_refused(lambda: sc_matmul(a, prepared), "SC_")
        assert_same_bits(sc_matmul(a, prepare(b, **knobs)), sc_matmul(a, b, **knobs))
    for value in ("", AS_UNSET[name]):
        monkeypatch.setenv(name, value)
        assert_same_bits(sc_matmul(a, prepared), expected)
    monkeypatch.setenv(name, "nonsense")
    assert_refused(lambda: sc_matmul(a, prepared), name, "nonsense")
    monkeypatch.delenv(name)
    assert_same_bits(sc_matmul(a, prepared), expected)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_an_a_that_does_not_fit(device):
    flat = prepare(torch.ones(6, 16, device=device))
    batched = prepare(torch.ones(3, 6, 16, device=device), "per_head")

    def refused(prepared, shape, *parts, dtype=None, **knobs):
        a = torch.ones(shape, device=device, dtype=dtype)
        assert_refused(lambda: sc_matmul(a, prepared, **knobs), *parts)

    refused(flat, (5, 15), "15", "16")
    refused(flat, (0, 15), "15", "16")
    refused(flat, (3, 5, 16))
    refused(flat, (16,), "16")
    refused(batched, (5, 16))
    refused(batched, (2, 5, 16), "batch", "2", "3")
    refused(flat, (5, 16), "float16, bfloat16, float32 or float64", "Int", dtype=torch.int32)
    refused(flat, (5, 16), "stoc_len must be in [1, 256] for sc_prec=8, got 257", stoc_len=257)
    refused(flat, (5, 16), "stoc_len", "0", stoc_len=0)
    refused(flat, (5, 16), "group_a must be at least 1, got 0", group_a=0)
    refused(batched, (3, 5, 16), "group_a must be 1", "per_head", group_a=2)
    halved = prepare(torch.ones(6, 16, device=device), **HALVED)
    refused(halved, (5, 16), "stoc_len", "[1, 128]", "halve_bipolar_stoc_len", stoc_len=129)


def test_an_a_on_another_device():
    a, b = pair()
    assert_refused(lambda: sc_matmul(a.to("meta"), prepare(b)), "device", "meta", "cpu")
    assert_refused(lambda: sc_matmul(a, prepare(b).to("meta")), "device", "meta", "cpu")


def unfit(*parts, shape=(4, 3), **knobs):
    return pytest.param(shape, knobs, parts, id=parts[0])


UNFIT = [
    unfit("'row'", "per_row", "per_head", granularity="row"),
    unfit("mode must be 'bipolar' or 'unipolar', got 'x'", mode="x"),
    unfit("per_head", "2D", granularity="per_head"),
    unfit("per_head", "'unipolar'", shape=(2, 4, 3), granularity="per_head", mode="unipolar"),
    unfit("chunk_d must be at least 0, got -1", chunk_d=-1),
    unfit("chunk_d", "per_tensor", chunk_d=2, granularity="per_tensor"),
    unfit("chunk_d", "unipolar", chunk_d=2, mode="unipolar"),
    unfit("chunk_d", "3D", shape=(2, 4, 3), chunk_d=2),
    unfit("group_b must be at least 1, got 0", group_b=0),
    unfit("group_b must be 1", "per_tensor", group_b=2, granularity="per_tensor"),
    unfit("sc_prec must be in [2, 12], got 13", sc_prec=13),
    unfit("rng_levels must be in [1, 256] for sc_prec=8, got 0", rng_levels=0),
    unfit("rng_levels must be in [1, 128]", "got 129", rng_levels=129, **HALVED),
    unfit("2D or 3D", "[3]", shape=(3,)),
    unfit("2D or 3D", "[1, 2, 4, 3]", shape=(1, 2, 4, 3)),
    unfit("config sng.q must have D = 3 entries, got 16", config=json.dumps(PLAIN_CONFIG)),
    unfit("config", config="{"),
]


@pytest.mark.parametrize(("shape", "knobs", "parts"), UNFIT)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_prepare_arguments(shape, knobs, parts, device):
    b = torch.ones(shape, device=device)
    for function in (prepare, OPS.prepare):
        assert_refused(lambda f=function: f(b, **knobs), *parts, operator="prepare")
    assert_refused(lambda: OPS.prepare_spec(shape, **knobs), *parts, operator="prepare_spec")


both_entries = pytest.mark.parametrize("function", [prepare, OPS.prepare])


@both_entries
def test_prepare_tensors(function):
    def refused(*parts, scales=None, dtype=torch.float32):
        b = torch.ones(4, 3, dtype=dtype)
        assert_refused(lambda: function(b, smooth_scales=scales), *parts, operator="prepare")

    refused("b must be float16, bfloat16, float32 or float64, got Int", dtype=torch.int32)
    refused("smooth_scales must have shape (D,) = (3,), got [4]", scales=torch.ones(4))
    refused("smooth_scales must be float16", "Int", scales=torch.ones(3).int())
    refused("smooth_scales", "device", scales=torch.ones(3, device="meta"))
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        scales = torch.tensor([1.0, 2.0, bad])
        refused("smooth_scales must be positive and finite", "index 2", scales=scales)


@pytest.mark.parametrize("name", VARIABLES)
def test_prepare_checks_the_environment(name, monkeypatch):
    monkeypatch.setenv(name, "nonsense")
    b = torch.ones(4, 3)
    assert_refused(lambda: prepare(b), name, "nonsense", operator="prepare")
    assert_refused(lambda: OPS.prepare(b), name, "nonsense", operator="prepare")
    assert_refused(lambda: OPS.prepare_spec((4, 3)), name, operator="prepare_spec")


@pytest.mark.parametrize("knob", ["group_a", "stoc_len"])
def test_prepare_does_not_take_what_stays_free(knob):
    with pytest.raises(TypeError, match=knob):
        prepare(torch.ones(4, 3), **{knob: 2})


@both_entries
def test_a_b_that_requires_grad(function):
    b = torch.ones(4, 3, requires_grad=True)
    assert_refused(lambda: function(b), "grad", operator="prepare")
    assert_refused(lambda: function(torch.nn.Linear(3, 4).weight), "grad", operator="prepare")
    with torch.no_grad():
        function(b)
    function(b.detach())


# --- operators -----------------------------------------------------------------------------------


def parts_of(kind, **more):
    """b prepared by the operators: the tensors and the spec."""
    b = randn(6, 16, seed=1)
    knobs = KINDS[kind] | more
    if isinstance(knobs.get("config"), dict):
        knobs = knobs | {"config": json.dumps(knobs["config"])}
    return OPS.prepare(b, **knobs), OPS.prepare_spec(b.shape, **knobs)


@kinds
def test_operators(kind):
    a, b = pair()
    (stored, spec), prepared = parts_of(kind), prepare(b, **KINDS[kind])
    assert json.loads(spec) == json.loads(prepared.spec)
    assert len(stored) == len(prepared.tensors)
    for actual, expected in zip(stored, prepared.tensors, strict=True):
        assert_same_bits(actual, expected)
    for length in (None, 50):
        expected = sc_matmul(a, b, **KINDS[kind], stoc_len=length)
        for operator in (OPS.sc_matmul.prepared, OPS.sc_matmul):
            assert_same_bits(operator(a, stored, spec, stoc_len=length), expected)


def test_a_digest_does_not_get_into_a_spec():
    config = StreamConfig(PLAIN_CONFIG)
    spec = OPS.prepare_spec((6, 16), config=config.digest)
    assert "sha256:" not in spec and "rng_pool" in spec


@kinds
def test_opcheck(kind):
    a = randn(5, 16)
    stored, spec = parts_of(kind)
    opcheck(OPS.sc_matmul.prepared, (a, stored, spec), {"stoc_len": 50})
    opcheck(OPS.sc_matmul.prepared, (a.requires_grad_(), stored, spec))


def test_opcheck_prepare():
    """Above all: its outputs are no views of its inputs."""
    b, scales = randn(6, 16), torch.ones(16)
    opcheck(OPS.prepare, (b,), {"smooth_scales": scales}, test_utils="test_schema")
    opcheck(OPS.prepare, (b, "per_tensor"), {"expand": True}, test_utils="test_schema")


@kinds
def test_meta(kind):
    a, b = pair()
    stored, spec = parts_of(kind)
    out = OPS.sc_matmul.prepared(a.to("meta"), [x.to("meta") for x in stored], spec)
    assert out.is_meta and out.shape == (5, 6) and out.dtype == torch.float32
    knobs = {k: v.to("meta") if torch.is_tensor(v) else v for k, v in KINDS[kind].items()}
    prepared = prepare(b.to("meta"), **knobs)
    for actual, expected in zip(prepared.tensors, prepare(b, **KINDS[kind]).tensors, strict=True):
        assert actual.is_meta
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert sc_matmul(a.to("meta"), prepared, stoc_len=50).shape == (5, 6)
    assert sc_matmul(a.to("meta"), prepare(b, **KINDS[kind]).to("meta")).shape == (5, 6)


def scripted(a: torch.Tensor, b: list[torch.Tensor], spec: str):
    return torch.ops.scmp.sc_matmul(a, b, spec, stoc_len=50)


def test_torchscript():
    a = randn(5, 16)
    stored, spec = parts_of("chunks")
    assert torch.equal(torch.jit.script(scripted)(a, stored, spec), scripted(a, stored, spec))


# --- broken by hand: refused, never a crash ------------------------------------------------------

JUNK = (None, True, -1, 0, 3, 2**31, 2**63, 10**30, 0.5, 1e400, "", "x", [], [1], {}, {"x": 1})
MALFORMED = ("", " ", "{", "}", "null", "1", '"x"', "[]", "[1, 2]", "{}", "{}{}", "\0", "é" * 99)
MALFORMED += ('{"x": 1}', "nan", "[" * 10000, '{"a":' * 10000, "sha256:0")


def refused_or_a_tensor(a, stored, spec):
    """Broken in a way that may not matter: a ValueError of one line, or a result of the shape."""
    try:
        out = OPS.sc_matmul.prepared(a, stored, spec)
    except ValueError as error:
        assert type(error) is ValueError and "\n" not in str(error)
        assert str(error).startswith("sc_matmul: ")
    else:
        assert out.shape == (len(a), 6) and out.dtype == torch.float32


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_malformed_specs(device):
    a = randn(5, 16).to(device)
    stored = [x.to(device) for x in parts_of("plain")[0]]
    for spec in MALFORMED:
        assert_refused(lambda spec=spec: OPS.sc_matmul.prepared(a, stored, spec))


def broken(value):
    """Every way to break one place of a JSON value."""
    yield from JUNK
    if isinstance(value, dict):
        for key in value:
            yield {name: item for name, item in value.items() if name != key}
            yield value | {key + "x": value[key]}
            for item in broken(value[key]):
                yield value | {key: item}
    elif isinstance(value, list) and value:
        yield value[1:]
        yield [*value, value[-1]]
        for item in JUNK:
            yield [item, *value[1:]]
        yield [2**32, 2**32]
        yield [-x if isinstance(x, int) else x for x in value]


@pytest.mark.parametrize("kind", ["plain", "chunks", "scales-unipolar", "tensor-unipolar"])
def test_specs_broken_in_one_place(kind):
    stored, spec = parts_of(kind)
    for value in broken(json.loads(spec)):
        refused_or_a_tensor(randn(5, 16), stored, json.dumps(value))


@settings(max_examples=200)
@given(st.data())
def test_specs_with_typing_errors(data):
    stored, spec = parts_of(data.draw(st.sampled_from(sorted(KINDS))))
    at = data.draw(st.integers(0, len(spec)))
    cut = data.draw(st.integers(0, 3))
    insert = data.draw(st.one_of(st.text(max_size=2), st.sampled_from('0123456789-."[]{},:')))
    refused_or_a_tensor(randn(5, 16), stored, spec[:at] + insert + spec[at + cut :])


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("shape", "knobs"),
    [
        ((7, 16), {}),
        ((16, 6), {}),
        ((1, 6, 16), {}),
        ((2**40, 16), {}),
        ((6, 16), {"mode": "unipolar"}),
        ((6, 16), {"granularity": "per_tensor"}),
        ((6, 16), {"chunk_d": 5}),
    ],
)
def test_the_spec_of_another_b(shape, knobs, device):
    stored = [x.to(device) for x in parts_of("plain")[0]]
    spec = OPS.prepare_spec(shape, **knobs)
    a = torch.ones(*shape[:-2], 5, shape[-1], device=device)
    assert_refused(lambda: OPS.sc_matmul.prepared(a, stored, spec))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("kind", ["chunks", "scales-unipolar", "tensor-unipolar"])
def test_tensors_that_do_not_fit_the_spec(kind, device):
    a = randn(5, 16).to(device)
    stored, spec = parts_of(kind)
    stored = [x.to(device) for x in stored]

    def refused(wrong):
        assert_refused(lambda: OPS.sc_matmul.prepared(a, wrong, spec))

    OPS.sc_matmul.prepared(a, stored, spec)
    refused([])
    refused(stored[:1])
    refused(stored[:-1])
    refused([*stored, torch.ones(3, device=device)])
    refused(stored[::-1])
    for i, x in enumerate(stored):
        if x.numel() == 0:  # what does not apply
            continue
        other = torch.int64 if x.dtype == torch.float32 else torch.float32
        elsewhere = "meta" if device == "cpu" else "cpu"
        wrong = [x.to(other), x.bool(), x.new_empty(0), x[None], x[..., :-1], torch.cat([x, x])]
        wrong += [torch.cat([x, x], -1), torch.empty_like(x, device=elsewhere)]
        for one in wrong:
            refused([*stored[:i], one, *stored[i + 1 :]])


@pytest.mark.parametrize("kind", ["chunks", "scales-unipolar", "tensor-unipolar"])
def test_tensors_with_other_strides(kernel, kind):
    a = randn(5, 16)
    stored, spec = parts_of(kind)
    expected = OPS.sc_matmul.prepared(a, stored, spec)
    strided = [torch.stack([x, x + 1], -1)[..., 0] for x in stored]
    offset = [torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) for x in stored]
    flipped = [x.t().contiguous().t() if x.dim() == 2 else x for x in stored]
    for same in (strided, offset, flipped):
        try:
            out = OPS.sc_matmul.prepared(a, same, spec)
        except ValueError as error:
            assert "contiguous" in str(error)
        else:
            assert_same_bits(out, expected)


@pytest.mark.parametrize("kind", ["halved", "chunks", "unipolar", "tensor-unipolar", "fine"])
def test_codes_off_the_grid(kernel, kind):
    prepared = prepare(randn(6, 16, seed=1), **KINDS[kind])
    unipolar = prepared.mode == "unipolar"
    grid = {"halved": 128, "chunks": 128, "fine": 77}.get(kind, 256)
    stored, spec = prepared.tensors, prepared.spec
    for rows in (1, 5, 40):
        a = randn(rows, 16)
        for row, column in ((0, 0), (2, 7), (5, 15)):
            before = prepared.codes[row, column].item()
            for code in (grid + 1, -grid - 1, 32767, -32768, *([-1, -grid] if unipolar else [])):
                prepared.codes[row, column] = code
                assert_refused(lambda: sc_matmul(a, prepared))  # noqa: B023
                assert_refused(lambda: OPS.sc_matmul.prepared(a, stored, spec))  # noqa: B023
            prepared.codes[row, column] = grid
            assert sc_matmul(a, prepared).isfinite().all()
            prepared.codes[row, column] = before


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_smooth_scales_broken_in_the_buffer(bad):
    a, b = pair()
    prepared = prepare(b, smooth_scales=torch.ones(16))
    prepared.smooth_scales[3] = bad
    assert_refused(lambda: sc_matmul(a, prepared), "positive and finite")


# --- moved, copied, stored -----------------------------------------------------------------------


def through_torch_save(prepared):
    buffer = io.BytesIO()
    torch.save(prepared, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def through_a_state_dict(prepared):
    """Saved, read as plain weights, and loaded into a Prepared of another b and other knobs."""
    buffer = io.BytesIO()
    torch.save(prepared.state_dict(), buffer)
    buffer.seek(0)
    other = prepare(torch.ones(2, 3), sc_prec=5)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    return other


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda prepared: pickle.loads(pickle.dumps(prepared)),
    "torch.save": through_torch_save,
    "state_dict": through_a_state_dict,
}
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


class Layer(torch.nn.Module):
    """A prepared weight inside a model."""

    def __init__(self, b, **knobs):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(len(b)))
        self.weight = prepare(b, **knobs)

    def forward(self, a):
        return sc_matmul(a, self.weight, stoc_len=50) + self.bias


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


# --- gradients -----------------------------------------------------------------------------------


def levels_of(
    b,
    granularity="per_row",
    mode="bipolar",
    sc_prec=8,
    chunk_d=0,
    group_b=1,
    smooth_scales=None,
    **_,
):
    """Levels (b's shape), qmax, and scales and zero points that broadcast against them."""
    x = as_float32(b)
    if smooth_scales is not None:
        x = x * as_float32(smooth_scales)
    x3 = x if x.ndim == 3 else x[None]
    unipolar, depth = mode == "unipolar", x.shape[-1]
    qmax = 2**sc_prec - 1 if unipolar else 2 ** (sc_prec - 1) - 1
    chunked = 0 < chunk_d < depth
    parts = []
    for start in range(0, depth, chunk_d if chunked else depth):
        part = x3[..., start : start + chunk_d] if chunked else x3
        q, *affine = reference._quantize_operand(
            part, granularity, group_b, qmax, unipolar, chunked
        )
        parts.append([q, *(np.broadcast_to(value[..., None], q.shape) for value in affine)])
    q, scale, zero = (np.concatenate(part, -1).reshape(x.shape) for part in zip(*parts))  # noqa: B905
    return q, qmax, scale, zero


def dequantized(b, **knobs):
    """What b is worth to the gradient: its codes back to levels, scaled, the smoothing undone."""
    q, qmax, scale, zero = levels_of(b, **knobs)
    grid = knobs.get("rng_levels") or longest(knobs)
    levels = np.sign(q) * np.rint(boundary(q, qmax, grid) * qmax / grid)
    value = (levels - zero.astype(np.float64)) * scale
    if knobs.get("smooth_scales") is not None:
        value = value / as_float32(knobs["smooth_scales"])
    return torch.from_numpy(value)


@pytest.mark.parametrize("expand", [False, True])
@kinds
def test_the_gradient_is_that_of_the_dequantized_b(kind, expand):
    a, b = pair()
    prepared, g = prepare(b, **KINDS[kind], expand=expand), randn(5, 6, seed=2)
    a.requires_grad_()
    out = sc_matmul(a, prepared)
    assert_same_bits(out.detach(), sc_matmul(a.detach(), b, **KINDS[kind]))
    (grad,) = torch.autograd.grad(out, a, g)
    expected = (g.double() @ dequantized(b, **KINDS[kind])).float()
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("levels", [1, 7, 100, 256])
def test_the_gradient_on_a_coarse_grid(levels):
    a, b = pair()
    for mode in ("bipolar", "unipolar"):
        knobs = {"mode": mode, "rng_levels": levels}
        sc_matmul(a.requires_grad_(), prepare(b, **knobs)).sum().backward()
        expected = torch.ones(5, 6).double() @ dequantized(b, **knobs)
        torch.testing.assert_close(a.grad, expected.float(), rtol=1e-4, atol=1e-5)
        a.grad = None


@pytest.mark.parametrize("name", BATCHED)
def test_the_gradient_of_a_batch(name):
    knobs, free = split(BATCHED[name])
    a, b = pair(batch=(3,))
    g = randn(3, 5, 6, seed=2)
    sc_matmul(a.requires_grad_(), prepare(b, **knobs), **free).backward(g)
    expected = (g.double() @ dequantized(b, **knobs)).float()
    torch.testing.assert_close(a.grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_has_the_dtype_of_a(dtype):
    a, b = pair()
    g = randn(5, 6, seed=2) * 100
    a = a.to(dtype).requires_grad_()
    sc_matmul(a, prepare(b)).backward(g)
    assert a.grad.dtype == dtype
    expected = (g.double() @ dequantized(b)).to(dtype)
    torch.testing.assert_close(a.grad, expected, rtol=1e-2, atol=1e-2)


def test_empty_gradients():
    for n, m, depth in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        a = torch.ones(n, depth, requires_grad=True)
        sc_matmul(a, prepare(torch.ones(m, depth))).sum().backward()
        assert a.grad.shape == (n, depth) and (m > 0 or not a.grad.any())


def test_no_gradient_where_none_is_asked_for():
    a, b = pair()
    prepared = prepare(b)
    assert not sc_matmul(a, prepared).requires_grad
    with torch.no_grad():
        assert not sc_matmul(a.requires_grad_(), prepared).requires_grad


def test_double_backward_and_forward_mode_raise():
    a, b = pair()
    prepared = prepare(b)
    x = a.clone().requires_grad_()
    (grad,) = torch.autograd.grad(sc_matmul(x, prepared).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="^sc_matmul: its straight-through gradient"):
        grad.sum().backward()
    with forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match="^sc_matmul: forward-mode"):
            sc_matmul(forward_ad.make_dual(a, a), prepared)


# --- compiled and exported -----------------------------------------------------------------------

SIZES = (5, 7, 33, 64, 2)


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh")
@kinds
def test_one_dynamic_graph(kind):
    prepared = prepare(randn(6, 16, seed=1), **KINDS[kind])

    def function(a):
        return sc_matmul(a * 2, prepared, stoc_len=50) + 1

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in SIZES:
            a = randn(n, 16)
            assert_same_bits(compiled(a), function(a))


@pytest.mark.usefixtures("fresh")
def test_a_marked_size_in_a_model():
    layer = Layer(randn(6, 16, seed=1), **HALVED)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in SIZES:
            a = randn(n, 16)
            torch._dynamo.mark_dynamic(a, 0)
            assert_same_bits(compiled(a).detach(), layer(a).detach())


@pytest.mark.usefixtures("fresh")
def test_gradients_in_one_dynamic_graph():
    prepared = prepare(randn(6, 16, seed=1), smooth_scales=torch.linspace(0.5, 2, 16))

    def function(a):
        return sc_matmul(a * 2, prepared).square()

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in SIZES:
            a = randn(n, 16).requires_grad_()
            (expected,) = torch.autograd.grad(function(a).sum(), a)
            assert_same_bits(torch.autograd.grad(compiled(a).sum(), a)[0], expected)


@pytest.mark.usefixtures("fresh")
def test_a_graph_is_never_stale():
    """Another Prepared, another state or another environment may recompile; none is frozen."""
    a, b = pair()
    layer = Layer(b)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(a).detach(), sc_matmul(a, b, stoc_len=50))
    layer.weight.load_state_dict(prepare(-b, rng_levels=100).state_dict())
    expected = sc_matmul(a, -b, rng_levels=100, stoc_len=50)
    assert_same_bits(compiled(a).detach(), expected)
    layer.weight = prepare(b, "per_tensor")
    expected = sc_matmul(a, b, "per_tensor", stoc_len=50)
    assert_same_bits(compiled(a).detach(), expected)
    with environment({"SC_OWEN_MODE": "random"}):
        with pytest.raises(Exception, match="sc_matmul: .*SC_"):
            compiled(a)
    assert_same_bits(compiled(a).detach(), expected)


@pytest.mark.usefixtures("fresh")
def test_a_prepared_as_an_argument():
    a, b = pair()
    compiled = torch.compile(lambda a, b: sc_matmul(a, b), fullgraph=True, backend="aot_eager")
    for other in (b, b * 2 + 1):
        assert_same_bits(compiled(a, prepare(other)), sc_matmul(a, other))


@pytest.mark.usefixtures("fresh")
def test_prepare_inside_a_graph_is_a_clear_error():
    compiled = torch.compile(
        lambda a, b: sc_matmul(a, prepare(b)), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match=r"prepare: "):
        compiled(*pair())


@pytest.mark.usefixtures("fresh")
def test_an_error_keeps_its_text():
    prepared = prepare(torch.ones(6, 16))
    compiled = torch.compile(lambda a: sc_matmul(a, prepared, stoc_len=999), backend="eager")
    with pytest.raises(Exception, match="stoc_len must be in .1, 256. for sc_prec=8, got 999"):
        compiled(torch.ones(5, 16))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("strict", [False, True])
def test_export_with_any_n(strict):
    layer = Layer(randn(6, 16, seed=1), config=StreamConfig(PLAIN_CONFIG))
    exported = torch.export.export(
        layer, (randn(5, 16),), dynamic_shapes=({0: Dim("n")},), strict=strict
    )
    assert "sha256:" not in str(exported.graph)
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    buffer.seek(0)
    for program in (exported, torch.export.load(buffer)):
        for n in (*SIZES, 1):
            a = randn(n, 16)
            assert_same_bits(program.module()(a).detach(), layer(a).detach())


# --- what broke once -----------------------------------------------------------------------------


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
