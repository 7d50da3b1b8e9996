"""Prepared operands: what is refused, and damage that must never be a crash."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prepared_cases import (
    HALVED,
    KINDS,
    OPS,
    PLAIN_CONFIG,
    assert_refused,
    pair,
    parts_of,
)
from strategies import make_config
from support import (
    VARIABLES,
    assert_same_bits,
    randn,
)

from scmp_kernels import prepare, sc_matmul

# --- refused --------------------------------------------------------------------------------------

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
    unfit("2D or 3D", "[1, 1, 2, 4, 3]", shape=(1, 1, 2, 4, 3)),
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


# --- broken by hand: refused, never a crash -------------------------------------------------------

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
