"""Stream lengths by row and chunk: each row has the bits of the uniform call at its length."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    DTYPES,
    KERNELS,
    assert_same_bits,
    assert_value_error,
    environment,
    forced,
    randn,
    threads,
)

from scmp_kernels import prepare, sc_matmul
from scmp_kernels.sc.config_helpers import (
    make_sobol_custom_seed_config,
    make_sobol_simple_config,
)


def chunk_products(a, b, lengths, chunk, **knobs):
    """The chunked product from one uniform call per length, added up in float32 as specified.

    A chunk alone is a call whose other columns are zeros: sums of 0 add nothing to the output.
    """
    chunks = -(-a.shape[1] // chunk)
    out = torch.zeros(a.shape[0], b.shape[0])
    for c in range(chunks):
        part = slice(c * chunk, (c + 1) * chunk)
        only = torch.zeros_like(a)
        only[:, part] = a[:, part]
        for length in lengths.unique().tolist():
            if length == 0:
                continue
            product = sc_matmul(only, b, chunk_d=chunk, stoc_len=length, **knobs)
            rows = lengths[:, c] == length
            out[rows] += product[rows]
    return out


def rows_of_uniform_calls(a, b, lengths, **knobs):
    """Row by row the uniform call at the row's length; zeros at length 0."""
    out = torch.zeros(*a.shape[:-1], b.shape[-2])
    for length in lengths.unique().tolist():
        if length:
            rows = lengths == length
            out[rows] = sc_matmul(a, b, stoc_len=length, **knobs)[rows]
    return out


CASES = {
    "full grid": {},
    "full grid, 64 masks of 16": {"sc_prec": 4},
    "halved": {"halve_bipolar_stoc_len": True},
    "rescaled": {"rng_levels": 100},
    "fine": {"sc_prec": 10},
    "groups": {"group_a": 3, "group_b": 2},
}


def some_lengths(shape, most, seed=1):
    """Lengths that include 0, 1, the longest and one short of it."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, most + 1, shape, generator=g)
    flat = lengths.view(-1)
    special = torch.tensor([most, 0, 1, most - 1, most])[: len(flat)]
    flat[: len(special)] = special
    return lengths


def longest(knobs):
    return 2 ** knobs.get("sc_prec", 8) // (2 if knobs.get("halve_bipolar_stoc_len") else 1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", CASES)
def test_rows(kernel, case):
    knobs = CASES[case]
    a, b = randn(11, 37), randn(9, 37, seed=1)
    lengths = some_lengths((11,), longest(knobs))
    with forced(kernel):
        actual = sc_matmul(a, b, stoc_len=lengths, **knobs)
    assert_same_bits(actual, rows_of_uniform_calls(a, b, lengths, **knobs))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", CASES)
def test_rows_of_a_batch(kernel, case):
    knobs = CASES[case]
    a, b = randn(3, 7, 20), randn(3, 5, 20, seed=1)
    lengths = some_lengths((3, 7), longest(knobs))
    with forced(kernel):
        actual = sc_matmul(a, b, stoc_len=lengths, **knobs)
    assert_same_bits(actual, rows_of_uniform_calls(a, b, lengths, **knobs))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [1, 9])
def test_rows_and_chunks(kernel, case, rows):
    knobs = CASES[case]
    a, b = randn(rows, 44), randn(70, 44, seed=1)
    lengths = some_lengths((rows, 3), longest(knobs))
    expected = chunk_products(a, b, lengths, 16, **knobs)
    with forced(kernel):
        assert_same_bits(sc_matmul(a, b, chunk_d=16, stoc_len=lengths, **knobs), expected)
        levels, rungs = lengths.unique(return_inverse=True)
        by_rungs = sc_matmul(
            a, b, chunk_d=16, rung_table=rungs.int(), level_lens=levels.tolist(), **knobs
        )
        assert_same_bits(by_rungs, expected)


@pytest.mark.parametrize("kernel", KERNELS)
def test_tables_too_large_to_keep(kernel):
    """A config with its own sequences everywhere, and a cache that holds none of their tables."""
    from scmp_kernels import _C

    config = make_sobol_custom_seed_config(48, 48, 8, use_scrambling=True)
    a, b = randn(40, 48), randn(70, 48, seed=1)
    lengths = some_lengths((40,), 256)
    expected = rows_of_uniform_calls(a, b, lengths, config=config)
    limit = _C.rng_cache_stats()["limit"]
    try:
        _C.set_rng_cache_limit(1 << 16)
        with forced(kernel):
            assert_same_bits(sc_matmul(a, b, stoc_len=lengths, config=config), expected)
    finally:
        _C.set_rng_cache_limit(limit)


def test_many_columns_and_deep_rows():
    a, b = randn(130, 700), randn(300, 700, seed=1)
    for knobs in ({"halve_bipolar_stoc_len": True}, {}):
        lengths = some_lengths((130,), longest(knobs))
        expected = rows_of_uniform_calls(a, b, lengths, **knobs)
        for count in (1, 3):
            with threads(count):
                assert_same_bits(sc_matmul(a, b, stoc_len=lengths, **knobs), expected)


@pytest.mark.parametrize("variables", [{"SC_OWEN_MODE": "counter"}, {"SC_DISABLE_OWEN": "1"}])
def test_scrambling(variables):
    a, b = randn(8, 24), randn(6, 24, seed=1)
    lengths = some_lengths((8,), 256)
    with environment(variables):
        expected = rows_of_uniform_calls(a, b, lengths)
        assert_same_bits(sc_matmul(a, b, stoc_len=lengths), expected)


def test_equal_lengths_are_the_uniform_call():
    a, b = randn(8, 24), randn(6, 24, seed=1)
    for length in (1, 64, 255, 256):
        rows = torch.full((8,), length)
        assert_same_bits(sc_matmul(a, b, stoc_len=rows), sc_matmul(a, b, stoc_len=length))


@pytest.mark.parametrize("chunk_d", [0, 8, 24, 100])
def test_one_length_for_all_chunks(chunk_d):
    a, b = randn(8, 24), randn(6, 24, seed=1)
    lengths = some_lengths((8,), 256)
    expected = rows_of_uniform_calls(a, b, lengths, chunk_d=chunk_d)
    assert_same_bits(sc_matmul(a, b, stoc_len=lengths, chunk_d=chunk_d), expected)
    if chunk_d:
        chunks = -(-24 // chunk_d)
        spread = lengths[:, None].expand(8, chunks)
        assert_same_bits(sc_matmul(a, b, stoc_len=spread, chunk_d=chunk_d), expected)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint16], ids=str
)
def test_integer_types_and_strides(dtype):
    a, b = randn(6, 24), randn(6, 24, seed=1)
    lengths = torch.tensor([3, 9, 200, 0, 7, 9, 100, 1, 5, 5, 255, 2]).to(dtype)[::2]
    expected = rows_of_uniform_calls(a, b, lengths.long())
    assert_same_bits(sc_matmul(a, b, stoc_len=lengths), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_smoothing_and_dtypes(dtype):
    a, b = randn(6, 24).to(dtype), randn(6, 24, seed=1).to(dtype)
    scales = randn(24, seed=2).abs() + 0.1
    lengths = some_lengths((6,), 256)
    expected = rows_of_uniform_calls(a, b, lengths, smooth_scales=scales)
    assert_same_bits(sc_matmul(a, b, stoc_len=lengths, smooth_scales=scales), expected)


def test_length_0_wins_over_nan_but_values_count_in_the_scale():
    a, b = randn(6, 24), randn(5, 24, seed=1)
    a[1, 3], a[2, 0] = float("nan"), float("inf")
    lengths = torch.tensor([64, 0, 0, 64, 0, 64])
    alone = sc_matmul(a, b, stoc_len=lengths)
    assert_same_bits(alone[[1, 2, 4]], torch.zeros(3, 5))
    assert not alone[[0, 3, 5]].isnan().any()
    grouped = sc_matmul(a, b, stoc_len=lengths, group_a=3)
    assert_same_bits(grouped[1:3], torch.zeros(2, 5))
    assert grouped[0].isnan().all() and not grouped[3:].isnan().any()
    b[0, 0] = float("nan")
    beside_nan = sc_matmul(a, b, stoc_len=lengths)
    assert_same_bits(beside_nan[[1, 2, 4]], torch.zeros(3, 5))
    assert beside_nan[0, 0].isnan() and not beside_nan[0, 1:].isnan().any()


def test_chunk_of_length_0_wins_over_nan():
    a, b = randn(3, 24), randn(5, 24, seed=1)
    lengths = torch.tensor([[64, 0, 32], [64, 16, 32], [0, 0, 0]])
    clean = sc_matmul(a, b, stoc_len=lengths, chunk_d=8)
    a[0, 9] = float("nan")
    dirty = sc_matmul(a, b, stoc_len=lengths, chunk_d=8)
    assert_same_bits(dirty, clean)


@pytest.mark.parametrize("shape", [(0, 8, 3), (4, 0, 3), (4, 8, 0)])
def test_empty(shape):
    n, d, m = shape
    a, b = torch.zeros(n, d), torch.zeros(m, d)
    assert_same_bits(sc_matmul(a, b, stoc_len=torch.full((n,), 7)), torch.zeros(n, m))


@pytest.mark.parametrize("kernel", KERNELS)
def test_prepared(kernel):
    a, b = randn(10, 40), randn(70, 40, seed=1)
    for knobs in ({}, {"chunk_d": 16}, {"halve_bipolar_stoc_len": True}):
        weight = prepare(b, **knobs)
        lengths = some_lengths((10,), longest(knobs))
        with forced(kernel):
            expected = sc_matmul(a, b, stoc_len=lengths, **knobs)
            assert_same_bits(sc_matmul(a, weight, stoc_len=lengths), expected)
    weight = prepare(b, chunk_d=16, config=make_sobol_simple_config(16, 16))
    lengths = some_lengths((10, 3), 256)
    expected = sc_matmul(a, b, stoc_len=lengths, chunk_d=16, config=weight.config)
    assert_same_bits(sc_matmul(a, weight, stoc_len=lengths), expected)
    levels, rungs = lengths.unique(return_inverse=True)
    assert_same_bits(sc_matmul(a, weight, rung_table=rungs, level_lens=levels.tolist()), expected)


def gradients(a, b, **knobs):
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    y = sc_matmul(a, b, **knobs)
    g = randn(*y.shape, seed=5)
    y.backward(g)
    return a.grad, b.grad, g


def test_gradients_skip_rows_of_length_0():
    a, b = randn(6, 24), randn(5, 24, seed=1)
    lengths = torch.tensor([64, 0, 256, 1, 0, 64])
    clean_a, clean_b = a.clone(), b.clone()
    a[1, 3] = float("nan")
    grad_a, grad_b, g = gradients(a, b, stoc_len=lengths)
    counted = (lengths > 0)[:, None]
    torch.testing.assert_close(grad_a, (g @ clean_b) * counted)
    torch.testing.assert_close(grad_b, g.T @ (clean_a * counted))


def test_gradients_skip_chunks_of_length_0():
    a, b = randn(3, 20), randn(5, 20, seed=1)
    lengths = torch.tensor([[64, 0, 32], [64, 16, 32], [0, 0, 0]])
    counted = (lengths > 0).repeat_interleave(8, 1)[:, :20]
    levels, rungs = lengths.unique(return_inverse=True)
    for knobs in ({"stoc_len": lengths}, {"rung_table": rungs, "level_lens": levels.tolist()}):
        grad_a, grad_b, g = gradients(a, b, chunk_d=8, **knobs)
        torch.testing.assert_close(grad_a, (g @ b) * counted)
        torch.testing.assert_close(grad_b, g.T @ (a * counted))


def test_gradient_with_a_prepared_b():
    a, b = randn(6, 24).requires_grad_(), randn(5, 24, seed=1)
    lengths = torch.tensor([64, 0, 256, 1, 0, 64])
    sc_matmul(a, prepare(b), stoc_len=lengths).sum().backward()
    assert (a.grad[lengths == 0] == 0).all() and (a.grad[lengths > 0] != 0).any()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_rows(data):
    n, m, d = (data.draw(st.integers(1, most)) for most in (12, 9, 40))
    prec = data.draw(st.integers(2, 9))
    halve = data.draw(st.booleans())
    levels = data.draw(st.none() | st.integers(1, 2**prec // (2 if halve else 1)))
    chunk = data.draw(st.sampled_from([0, 1, 7, 16, 64]))
    most = 2**prec // (2 if halve else 1)
    lengths = torch.tensor(
        data.draw(st.lists(st.integers(0, most) | st.just(most), min_size=n, max_size=n))
    )
    knobs = {
        "sc_prec": prec,
        "rng_levels": levels,
        "halve_bipolar_stoc_len": halve,
        "chunk_d": chunk,
        "group_a": data.draw(st.integers(1, 3)),
    }
    a, b = randn(n, d, seed=n), randn(m, d, seed=m + 50)
    kernel = data.draw(st.sampled_from(KERNELS))
    with forced(kernel):
        actual = sc_matmul(a, b, stoc_len=lengths, **knobs)
    assert_same_bits(actual, rows_of_uniform_calls(a, b, lengths, **knobs))


# --- errors --------------------------------------------------------------------------------------

A, B = torch.zeros(4, 20), torch.zeros(3, 20)
ROWS = torch.full((4,), 8)
RUNGS = torch.zeros(4, 3, dtype=torch.int32)
ERRORS = {
    "shape": (
        {"stoc_len": torch.full((3,), 8)},
        "row_stoc_len must have shape (N,) = (4,), or (N, chunks) with chunk_d, got [3]",
    ),
    "chunks without chunk_d": (
        {"stoc_len": torch.full((4, 1), 8)},
        "row_stoc_len must have shape (N,) = (4,), or (N, chunks) with chunk_d, got [4, 1]",
    ),
    "number of chunks": (
        {"stoc_len": torch.full((4, 2), 8), "chunk_d": 8},
        "row_stoc_len must have shape (N,) = (4,) or (N, chunks) = (4, 3), got [4, 2]",
    ),
    "scalar": (
        {"stoc_len": torch.tensor(8)},
        "row_stoc_len must have shape (N,) = (4,), or (N, chunks) with chunk_d, got []",
    ),
    "float": (
        {"stoc_len": torch.full((4,), 8.0)},
        "row_stoc_len must hold integers (int8 to int64, uint8 to uint32), got Float",
    ),
    "bool": (
        {"stoc_len": torch.full((4,), True)},
        "row_stoc_len must hold integers (int8 to int64, uint8 to uint32), got Bool",
    ),
    "negative": (
        {"stoc_len": torch.tensor([1, 2, -1, 4])},
        "row_stoc_len must lie in [0, 256], got -1 at row 2",
    ),
    "too long": (
        {"stoc_len": torch.tensor([1, 2, 3, 257])},
        "row_stoc_len must lie in [0, 256], got 257 at row 3",
    ),
    "beyond 32 bits": (
        {"stoc_len": torch.tensor([1, 2, 3, 2**32 + 5])},
        "row_stoc_len must lie in [0, 256], got 4294967301 at row 3",
    ),
    "too long, halved": (
        {"stoc_len": torch.tensor([1, 2, 3, 129]), "halve_bipolar_stoc_len": True},
        "row_stoc_len must lie in [0, 128], got 129 at row 3",
    ),
    "unipolar": (
        {"stoc_len": ROWS, "mode": "unipolar"},
        "lengths by row (row_stoc_len, rung_table) need mode 'bipolar', got 'unipolar'",
    ),
    "per_tensor": (
        {"stoc_len": ROWS, "granularity": "per_tensor"},
        "lengths by row (row_stoc_len, rung_table) need granularity 'per_row', got 'per_tensor'",
    ),
    "two forms": (
        {"stoc_len": ROWS, "rung_table": RUNGS, "level_lens": [8], "chunk_d": 8},
        "row_stoc_len (a tensor stoc_len) and rung_table exclude each other, got both",
    ),
    "no levels": (
        {"rung_table": RUNGS, "chunk_d": 8},
        "rung_table and level_lens need each other, got rung_table alone",
    ),
    "no table": (
        {"level_lens": [8], "chunk_d": 8},
        "rung_table and level_lens need each other, got level_lens alone",
    ),
    "table without chunks": (
        {"rung_table": RUNGS, "level_lens": [8]},
        "rung_table needs 2D a and b and chunk_d > 0, got 2D and chunk_d 0",
    ),
    "table's shape": (
        {"rung_table": RUNGS[:, :2], "level_lens": [8], "chunk_d": 8},
        "rung_table must have shape (N, chunks) = (4, 3), got [4, 2]",
    ),
    "table's type": (
        {"rung_table": RUNGS.float(), "level_lens": [8], "chunk_d": 8},
        "rung_table must hold integers (int8 to int64, uint8 to uint32), got Float",
    ),
    "index": (
        {"rung_table": RUNGS + 1, "level_lens": [8], "chunk_d": 8},
        "rung_table must lie in [0, 0], got 1 at row 0",
    ),
    "empty levels": (
        {"rung_table": RUNGS, "level_lens": [], "chunk_d": 8},
        "level_lens must hold at least one length, got none",
    ),
    "level": (
        {"rung_table": RUNGS, "level_lens": [8, 257], "chunk_d": 8},
        "level_lens must lie in [0, 256], got 257",
    ),
    "cap": (
        {"rung_table": RUNGS, "level_lens": [8, 65], "chunk_d": 8, "stoc_len": 64},
        "level_lens must be at most stoc_len = 64, got 65",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    knobs, message = ERRORS[case]
    assert_value_error(lambda: sc_matmul(A, B, **knobs), f"sc_matmul: {message}")


def test_errors_of_the_operator():
    op = torch.ops.scmp.sc_matmul
    assert_value_error(
        lambda: op(A, B, stoc_len=8, row_stoc_len=ROWS),
        "sc_matmul: stoc_len must be left out beside row_stoc_len, got 8",
    )
    assert_value_error(
        lambda: op(A, B, row_stoc_len=ROWS.to("meta")),
        "sc_matmul: row_stoc_len must be on a's device cpu, got meta",
    )
    meta = op(A.to("meta"), B.to("meta"), row_stoc_len=ROWS.to("meta"))
    assert meta.shape == (4, 3) and meta.dtype == torch.float32
    batch = torch.zeros(2, 4, 20)
    assert_value_error(
        lambda: op(batch, batch, row_stoc_len=ROWS),
        "sc_matmul: row_stoc_len must have shape (B, N) = (2, 4) for 3D a, got [4]",
    )


def test_a_cap_that_holds_changes_nothing():
    a, b = randn(4, 20), randn(3, 20, seed=1)
    rungs = torch.tensor(np.arange(12).reshape(4, 3) % 3)
    knobs = {"chunk_d": 8, "rung_table": rungs, "level_lens": [64, 32, 0]}
    assert_same_bits(sc_matmul(a, b, stoc_len=64, **knobs), sc_matmul(a, b, **knobs))
