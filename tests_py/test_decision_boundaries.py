"""Inputs within a few units of where a level changes: every rounding of the text shows there."""

from fractions import Fraction

import numpy as np
import pytest
import reference
import reference_quant
import torch
from support import assert_same_bits

from scmp_kernels import quant, sc_matmul

F = np.float32
PRECISIONS = pytest.mark.parametrize("prec", [2, 3, 8, 12])


def near(values):
    """Each value as float32, and its neighbours up to three units away on both sides."""
    values = np.asarray(values, F)
    found = [values]
    for direction in (-np.inf, np.inf):
        x = values
        for _ in range(3):
            x = np.nextafter(x, F(direction))
            found.append(x)
    return np.stack(found)


def symmetric_rows(prec, seed):
    """(7, C): rows of one range, their elements around every tie of the symmetric levels."""
    qmax = 2 ** (prec - 1) - 1
    amax = F(np.random.default_rng(seed).uniform(0.1, 10))
    scale = amax * (F(1) / F(qmax))
    x = near((np.arange(qmax) + 0.5) * np.float64(scale))
    x = np.clip(np.concatenate([x, -x], axis=1), -amax, amax)
    x[:, 0] = amax
    return x, qmax, amax, scale


def asymmetric_rows(prec, seed):
    """(7, C) likewise, around every tie of the asymmetric levels."""
    qmax = 2**prec - 1
    low, high = np.random.default_rng(seed).uniform((-5, 0.5), (-0.5, 5)).astype(F)
    scale = (high - low) * (F(1) / F(qmax))
    zero = np.clip(np.rint(-low / scale), 0, qmax)
    x = near((np.arange(qmax) + 0.5 - zero) * np.float64(scale))
    x = np.clip(x, low, high)
    x[:, 0], x[:, -1] = low, high
    return x, qmax, low, high


def check(outputs, expected):
    for output, value in zip(outputs, expected, strict=True):
        if isinstance(value, np.ndarray):
            assert_same_bits(output, value)
        else:
            assert output == value


@PRECISIONS
def test_symmetric(kernel, prec):
    for seed in range(5):
        x, qmax, amax, _ = symmetric_rows(prec, seed)
        t = torch.from_numpy(x)
        args = (float(amax), prec)
        check(
            quant.fused_quantize_bipolar(t, *args),
            reference_quant.fused_quantize_bipolar(t, *args),
        )
        check(
            quant.fused_quantize_bipolar_perrow(t, prec),
            reference_quant.fused_quantize_bipolar_perrow(t, prec),
        )
        check(
            quant._grouped_symmetric_quant(t, 2, qmax),
            reference_quant.grouped_symmetric(t, 2, qmax),
        )


@PRECISIONS
def test_asymmetric(kernel, prec):
    for seed in range(5):
        x, qmax, low, high = asymmetric_rows(prec, seed)
        t = torch.from_numpy(x)
        args = (float(high), float(low), prec, True)
        check(
            quant.fused_quantize_unipolar(t, *args),
            reference_quant.fused_quantize_unipolar(t, *args),
        )
        check(
            quant._grouped_asymmetric_quant(t, 2, qmax),
            reference_quant.grouped_asymmetric(t, 2, qmax),
        )


@PRECISIONS
def test_sc_matmul(kernel, prec):
    for seed in range(2):
        a, b = (symmetric_rows(prec, 10 * seed + i)[0][:, :200] for i in range(2))
        u, v = (asymmetric_rows(prec, 10 * seed + i)[0][:, -200:] for i in range(2))
        for x, y, knobs in (
            (a, b, {}),
            (a, b, {"chunk_d": 150, "group_a": 7}),
            (a, b, {"granularity": "per_tensor"}),
            (a[None], b[None], {"granularity": "per_head"}),
            (u, v, {"mode": "unipolar"}),
            (u, v, {"mode": "unipolar", "granularity": "per_tensor"}),
        ):
            knobs = {"sc_prec": prec, "stoc_len": 2**prec // 2, **knobs}
            out = sc_matmul(torch.from_numpy(x), torch.from_numpy(y), **knobs)
            assert_same_bits(out, reference.sc_matmul(x, y, **knobs), f"({knobs})")


def test_the_inputs_tell_the_roundings_apart():
    """Dividing or multiplying by the inverse, fused or not: other levels somewhere in this data."""
    x, _, _, scale = symmetric_rows(12, 0)
    assert (np.rint(x / scale) != np.rint(x * (F(1) / scale))).any()
    x, qmax, low, high = asymmetric_rows(12, 0)
    scale, zero = reference_quant.affine_double(np.float64(low), np.float64(high), qmax, True)
    inverse = F(1 / scale)
    fused = np.rint(reference_quant.fma(x, inverse, zero))
    assert (fused != np.rint(x * inverse + F(zero))).any()
    assert (fused != np.rint(x.astype(np.float64) * np.float64(inverse) + zero)).any()


def test_fma_of_the_reference_is_correctly_rounded():
    draw = np.random.default_rng(0)
    x = (draw.standard_normal(3000) * 10.0 ** draw.integers(-12, 8, 3000)).astype(F)
    inverse, zero = F(0.37), 2048.0
    result = reference_quant.fma(x, inverse, zero)
    for value, got in zip(x, result, strict=True):
        exact = Fraction(float(value)) * Fraction(float(inverse)) + Fraction(zero)
        low, high = np.nextafter(got, F(-np.inf)), np.nextafter(got, F(np.inf))
        assert abs(exact - Fraction(float(got))) <= min(
            abs(exact - Fraction(float(low))), abs(exact - Fraction(float(high)))
        )
