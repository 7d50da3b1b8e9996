"""A prepared b: the bits of the direct call."""

import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prepared_cases import (
    BATCHED,
    HALVED,
    KINDS,
    PLAIN_CONFIG,
    check,
    kinds,
    levels_of,
    longest,
    pair,
    split,
)
from reference_quant import boundary
from strategies import calls, make_config, tensors
from support import (
    DTYPES,
    KERNELS,
    assert_same_bits,
    benchmark_shapes,
    forced,
    randn,
    threads,
)

from scmp_kernels import Prepared, clear_rng_cache, prepare, sc_matmul
from scmp_kernels.sc import det_kernel_tuning
from scmp_kernels.sc.config import StreamConfig

# --- the bits of the direct call ------------------------------------------------------------------


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


# --- NaN and Inf, empty sizes ---------------------------------------------------------------------


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


# --- what a Prepared is ---------------------------------------------------------------------------


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
