"""Everything that does not fit is a ValueError of one line, from Python and torch.ops alike."""

import math

import pytest
import torch
from support import assert_value_error

from scmp_kernels import sc_matmul

A, B = (2, 3), (4, 3)
DTYPES = "float16, bfloat16, float32 or float64"

both_devices = pytest.mark.parametrize("device", ["cpu", "meta"])
both_entries = pytest.mark.parametrize("function", [sc_matmul, torch.ops.scmp.sc_matmul])


def case(message, shape_a=(2, 3), shape_b=(4, 3), **knobs):
    return pytest.param(shape_a, shape_b, knobs, f"sc_matmul: {message}", id=message)


BATCHED = ((5, 2, 3), (5, 4, 3))
CASES = [
    case("granularity must be 'per_row', 'per_tensor' or 'per_head', got 'row'", granularity="row"),
    case("granularity must be 'per_row', 'per_tensor' or 'per_head', got ''", granularity=""),
    case("mode must be 'bipolar' or 'unipolar', got 'Bipolar'", mode="Bipolar"),
    case("granularity 'per_head' needs 3D a and b, got 2D", granularity="per_head"),
    case(
        "granularity 'per_head' needs mode 'bipolar', got 'unipolar'",
        *BATCHED,
        granularity="per_head",
        mode="unipolar",
    ),
    case("chunk_d must be at least 0, got -1", chunk_d=-1),
    case(
        "chunk_d > 0 (got 2) needs granularity 'per_row', got 'per_tensor'",
        chunk_d=2,
        granularity="per_tensor",
    ),
    case(
        "chunk_d > 0 (got 2) needs granularity 'per_row', got 'per_head'",
        *BATCHED,
        chunk_d=2,
        granularity="per_head",
    ),
    case("chunk_d > 0 (got 9) needs mode 'bipolar', got 'unipolar'", chunk_d=9, mode="unipolar"),
    case("chunk_d > 0 (got 9) needs 2D a and b, got 3D", *BATCHED, chunk_d=9),
    case("group_a must be at least 1, got 0", group_a=0),
    case("group_b must be at least 1, got -3", group_b=-3),
    case(
        "group_a must be 1 unless granularity is 'per_row', got 2 with 'per_tensor'",
        group_a=2,
        granularity="per_tensor",
    ),
    case(
        "group_b must be 1 unless granularity is 'per_row', got 7 with 'per_head'",
        *BATCHED,
        group_b=7,
        granularity="per_head",
    ),
    case("sc_prec must be in [2, 12], got 1", sc_prec=1),
    case("sc_prec must be in [2, 12], got 13", sc_prec=13),
    case("sc_prec must be in [2, 12], got 1099511627776", sc_prec=1099511627776),
    case("stoc_len must be in [1, 256] for sc_prec=8, got 0", stoc_len=0),
    case("stoc_len must be in [1, 4] for sc_prec=2, got 5", stoc_len=5, sc_prec=2),
    case("stoc_len must be in [1, 256] for sc_prec=8, got 4294967297", stoc_len=4294967297),
    case("rng_levels must be in [1, 256] for sc_prec=8, got -1", rng_levels=-1),
    case("rng_levels must be in [1, 4096] for sc_prec=12, got 4097", rng_levels=4097, sc_prec=12),
    case(
        "stoc_len must be in [1, 128] for sc_prec=8 with halve_bipolar_stoc_len, got 129",
        stoc_len=129,
        halve_bipolar_stoc_len=True,
    ),
    case(
        "rng_levels must be in [1, 128] for sc_prec=8 with halve_bipolar_stoc_len, got 256",
        rng_levels=256,
        halve_bipolar_stoc_len=True,
    ),
    case("a must be 2D or 3D, got 1D of shape [3]", (3,), B),
    case("b must be 2D or 3D, got 1D of shape [3]", A, (3,)),
    case("a must be 2D or 3D, got 4D of shape [1, 1, 2, 3]", (1, 1, 2, 3), B),
    case(
        "a and b must have the same rank, got a of shape [5, 2, 3] and b of shape [4, 3]",
        (5, 2, 3),
        (4, 3),
    ),
    case("a and b must have the same last size D, got 3 and 5", A, (4, 5)),
    case("a and b must have the same batch (first) size, got 5 and 6", (5, 2, 3), (6, 4, 3)),
    case("a and b must have the same last size D, got 3 and 5", (0, 3), (0, 5)),
    case("mode must be 'bipolar' or 'unipolar', got 'x'", (0, 0), (0, 0), mode="x"),
]


@pytest.mark.parametrize(("shape_a", "shape_b", "knobs", "message"), CASES)
@both_devices
@both_entries
def test_sc_matmul_arguments(function, device, shape_a, shape_b, knobs, message):
    a, b = torch.ones(shape_a, device=device), torch.ones(shape_b, device=device)
    assert_value_error(lambda: function(a, b, **knobs), message)


@pytest.mark.parametrize("name", ["a", "b", "smooth_scales"])
@pytest.mark.parametrize(
    ("dtype", "shown"),
    [
        (torch.int32, "Int"),
        (torch.int64, "Long"),
        (torch.bool, "Bool"),
        (torch.complex64, "ComplexFloat"),
        (torch.float8_e4m3fn, "Float8_e4m3fn"),
        (torch.float8_e5m2, "Float8_e5m2"),
    ],
)
@both_devices
@both_entries
def test_sc_matmul_dtypes(function, device, dtype, shown, name):
    tensors = {"a": torch.ones(A), "b": torch.ones(B), "smooth_scales": torch.ones(3)}
    tensors = {key: x.to(device) for key, x in tensors.items()}
    tensors[name] = tensors[name].to(dtype)
    message = f"sc_matmul: {name} must be {DTYPES}, got {shown}"
    assert_value_error(lambda: function(**tensors), message)


@pytest.mark.parametrize("shape", [(4,), (2,), (0,), (1, 3), (3, 1), ()])
@both_devices
@both_entries
def test_smooth_scales_shape(function, device, shape):
    a, b, s = (torch.ones(shape, device=device) for shape in (A, B, shape))
    message = f"sc_matmul: smooth_scales must have shape (D,) = (3,), got {list(shape)}"
    assert_value_error(lambda: function(a, b, smooth_scales=s), message)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (-1.0, "-1"), (math.nan, "nan"), (math.inf, "inf"), (1e-60, "0"), (1e60, "inf")],
)
@pytest.mark.parametrize("rows", [0, 2])
@both_entries
def test_smooth_scales_values(function, value, shown, rows):
    scales = torch.tensor([1.0, 2.0, value], dtype=torch.float64)
    message = (
        f"sc_matmul: smooth_scales must be positive and finite as float32, got {shown} at index 2"
    )
    call = lambda: function(torch.ones(rows, 3), torch.ones(B), smooth_scales=scales)  # noqa: E731
    assert_value_error(call, message)


@both_entries
def test_devices(function):
    cpu, meta = torch.ones(2, 3), torch.ones(2, 3, device="meta")
    scales = torch.ones(3, device="meta")
    for call, message in (
        (lambda: function(cpu, meta), "b must be on a's device cpu, got meta"),
        (lambda: function(meta, cpu), "b must be on a's device meta, got cpu"),
        (
            lambda: function(cpu, cpu, smooth_scales=scales),
            "smooth_scales must be on a's device cpu, got meta",
        ),
    ):
        assert_value_error(call, f"sc_matmul: {message}")


FLAG = "must be 0 or 1"
MASKS = "must be a power of two from 1 to 2**30"
MODES = "must be bitrev, counter, random or off"


@pytest.mark.parametrize(
    ("name", "allowed", "values"),
    [
        ("SC_OWEN_MODE", MODES, ["Bitrev", "none", "1", "bitrev ", "off\n"]),
        ("SC_DISABLE_OWEN", FLAG, ["2", "true", " 1", "01", "-1"]),
        ("SC_SCRAMBLE_RESCALE", FLAG, ["2", "false", "0 ", "00"]),
        (
            "SC_SCRAMBLE_MASKS",
            MASKS,
            ["0", "3", "-2", "+8", "08", "0x10", "8.0", " 8", "2147483648", "9" * 30],
        ),
    ],
)
@both_devices
@both_entries
def test_environment(function, device, name, allowed, values, monkeypatch):
    """Read and checked at every call, used or not: a full sequence needs none of them."""
    for value in values:
        monkeypatch.setenv(name, value)
        shown = value.replace("\n", "?")
        for depth in (3, 0):
            a, b = torch.ones(2, depth, device=device), torch.ones(4, depth, device=device)
            assert_value_error(
                lambda a=a, b=b: function(a, b), f"sc_matmul: {name} {allowed}, got '{shown}'"
            )


def test_environment_values_are_quoted_safely(monkeypatch):
    monkeypatch.setenv("SC_OWEN_MODE", "é" * 100)
    with pytest.raises(ValueError, match=r"off, got '\?{60}\.\.\.'$"):
        sc_matmul(torch.ones(A), torch.ones(B))
