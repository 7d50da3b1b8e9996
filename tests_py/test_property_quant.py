"""The six quantizers against numpy, bit for bit, on every kernel's instruction set."""

import numpy as np
import pytest
import reference_quant as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import sizes, tensors
from support import KERNELS, assert_same_bits, forced, threads

from scmp_kernels import quant

PRECISIONS = st.integers(2, 12)
RANGES = st.one_of(
    st.sampled_from((0.0, 1e-5, 0.99e-5, 1.0, 3.4e38, 1e300, 5e-324)),
    st.floats(0, 10),
    st.floats(0, 1e4, width=32),
)
SIGNED = st.one_of(RANGES, RANGES.map(lambda value: -value))


def grids(prec):
    base = 2**prec
    return st.one_of(st.none(), st.sampled_from((1, base // 2, base)), st.integers(1, base))


@st.composite
def matrices(draw, batched=False):
    shape = (draw(sizes(70)), draw(sizes(70)))
    return draw(tensors((draw(st.integers(0, 3)), *shape) if batched else shape))


def check(call, expected):
    """`call()` returns `expected` on every kernel: tensors by their bits, scalars equal."""
    for kernel in KERNELS:
        with forced(kernel):
            outputs = call()
        assert len(outputs) == len(expected)
        for j, (output, value) in enumerate(zip(outputs, expected, strict=True)):
            if isinstance(value, np.ndarray):
                assert_same_bits(output, value, f"(output {j}, {kernel} kernel)")
            else:
                assert type(output) is type(value) and output == value, (j, output, value)


@settings(max_examples=150)
@given(st.data(), matrices(), PRECISIONS, RANGES)
def test_fused_quantize_bipolar(data, x, prec, abs_max):
    levels = data.draw(grids(prec))
    expected = reference.fused_quantize_bipolar(x, abs_max, prec, levels)
    check(lambda: quant.fused_quantize_bipolar(x, abs_max, prec, levels), expected)
    check(lambda: torch.ops.scmp.fused_quantize_bipolar(x, abs_max, prec, levels), expected[:2])


@settings(max_examples=150)
@given(st.data(), matrices(), PRECISIONS)
def test_fused_quantize_bipolar_perrow(data, x, prec):
    levels = data.draw(grids(prec))
    expected = reference.fused_quantize_bipolar_perrow(x, prec, levels)
    for module in (quant, torch.ops.scmp):
        check(lambda m=module: m.fused_quantize_bipolar_perrow(x, prec, levels), expected)


@settings(max_examples=200)
@given(st.data(), matrices(), PRECISIONS, SIGNED, SIGNED, st.booleans())
def test_fused_quantize_unipolar(data, x, prec, one, other, compute_sum):
    levels = data.draw(grids(prec))
    args = (x, max(one, other), min(one, other), prec, compute_sum, levels)
    expected = reference.fused_quantize_unipolar(*args)
    check(lambda: quant.fused_quantize_unipolar(*args), expected)
    operator = torch.ops.scmp.fused_quantize_unipolar
    check(lambda: operator(*args), (expected[0], expected[3]))


@settings(max_examples=60)
@given(matrices(), PRECISIONS, st.booleans())
def test_fused_quantize_unipolar_at_the_tensors_own_range(x, prec, widen):
    """The range that a caller measures: the fused multiply-add is then near ties."""
    values = reference.as_float32(x)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    args = (x, high, low - widen * 0.5, prec, True)
    check(lambda: quant.fused_quantize_unipolar(*args), reference.fused_quantize_unipolar(*args))


GROUPS = st.one_of(st.integers(1, 12), st.just(10**9))
QMAX = st.one_of(st.sampled_from((1, 7, 127, 255, 2047, 4095, 2**24)), st.integers(1, 4095))


@settings(max_examples=120)
@given(matrices(), GROUPS, QMAX)
def test_grouped_symmetric(x, group, qmax):
    expected = reference.grouped_symmetric(x, group, qmax)
    check(lambda: quant._grouped_symmetric_quant(x, group, qmax), expected)
    check(lambda: torch.ops.scmp.grouped_symmetric_quant(x, group, qmax), expected)


@settings(max_examples=80)
@given(matrices(batched=True), GROUPS, QMAX)
def test_grouped_symmetric_batched(x, group, qmax):
    expected = reference.grouped_symmetric(x, group, qmax)
    check(lambda: quant._grouped_symmetric_quant_batched(x, group, qmax), expected)


@settings(max_examples=120)
@given(st.data(), st.booleans(), GROUPS, QMAX)
def test_grouped_asymmetric(data, batched, group, qmax):
    x = data.draw(matrices(batched))
    expected = reference.grouped_asymmetric(x, group, qmax)
    check(lambda: torch.ops.scmp.grouped_asymmetric_quant(x, group, qmax), expected)
    if not batched:
        check(lambda: quant._grouped_asymmetric_quant(x, group, qmax), expected)


@settings(max_examples=20)
@given(st.data(), st.integers(2, 4))
def test_rows_enough_for_several_threads(data, count):
    x = data.draw(tensors((1030, 70)))
    expected = reference.fused_quantize_bipolar_perrow(x, 8)
    with threads(count):
        check(lambda: quant.fused_quantize_bipolar_perrow(x, 8), expected)


@pytest.mark.parametrize("end", [1e305, -1e305])
def test_fused_quantize_unipolar_far_from_zero(end):
    """The zero point is clamped even where -fp_min / scale overflows a double."""
    x = torch.tensor([[0.0, 1.0, -3e38]])
    args = (x, end, end, 8, True)
    check(lambda: quant.fused_quantize_unipolar(*args), reference.fused_quantize_unipolar(*args))
