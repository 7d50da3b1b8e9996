"""How floats become levels and codes, a second time: numpy, no C++.

Written from docs/semantics.md, not from the kernels. Floats follow IEEE float32 because every
operand is a numpy float32 array; where the text says "double", float64 is spelled out.
"""

import numpy as np
import torch

F = np.float32
EPS = F(1e-5)


def as_float32(x):
    """A tensor or array as a contiguous float32 array."""
    return np.array(torch.as_tensor(x).detach().to(torch.float32).numpy(), order="C")


def boundary(q, qmax, levels):
    """The code of integer levels q >= 0 on the grid."""
    return (2 * np.abs(q).astype(np.int64) * levels + qmax) // (2 * qmax)


def fma(x, y, z):
    """float32 x * y + z with one rounding: the sum is rounded to odd in double, then to float32."""
    product, z = x.astype(np.float64) * np.float64(y), np.float64(z)  # exact: 24 + 24 bits
    total = product + z
    shadow = total - product
    error = (product - (total - shadow)) + (z - shadow)
    even = total.view(np.int64) % 2 == 0
    odd = np.nextafter(total, np.copysign(np.inf, error))
    return np.where((error != 0) & even, odd, total).astype(F)


def _extremes(x):
    x = x if x.size else np.zeros(1, F)
    return x.min(), x.max()


def affine_double(low, high, qmax, unipolar):
    """Scale and zero point of a given range, in double."""
    if not unipolar:
        return max(high, 1e-5) / qmax, 0.0
    scale = max(high - low, 1e-5) / qmax
    with np.errstate(over="ignore"):
        zero = np.rint(-np.float64(low) / scale)
    return scale, float(np.clip(zero, 0, qmax) + 0.0)


def levels_double(x, scale, zero, qmax, unipolar):
    """Levels of finite x under a scale and zero point in double."""
    inverse = F(1.0 / scale)
    if unipolar:
        return np.clip(np.rint(fma(x, inverse, zero)), 0, qmax).astype(F) + F(0)
    return np.clip(np.rint(x * inverse), -qmax, qmax).astype(F)


@np.errstate(all="ignore")
def quantize(x, qmax, unipolar=False, rounding="divide"):
    """One quantization group: x of any shape -> (q, scale, zero point)."""
    if not np.isfinite(x).all():
        return np.zeros_like(x), F(np.nan), F(np.nan)
    low, high = _extremes(x)
    amax = max(abs(low), abs(high))
    if rounding == "double":
        low, high = np.float64(low), np.float64(high if unipolar else amax)
        scale, zero = affine_double(low, high, qmax, unipolar)
        return levels_double(x, scale, zero, qmax, unipolar), np.float64(scale), F(zero)
    r = F(1) / F(qmax)
    if unipolar:
        scale = max(high - low, EPS) * r
        zero = np.clip(np.rint(-low / scale), F(0), F(qmax)) + F(0)
        return np.clip(np.rint(x / scale + zero), 0, qmax).astype(F) + F(0), scale, zero
    scale = max(amax, EPS) * r
    quotient = x * (F(1) / scale) if rounding == "multiply" else x / scale
    return np.clip(np.rint(quotient), -qmax, qmax).astype(F), scale, F(0)


def quantize_rows(x, group, qmax, unipolar=False, rounding="divide"):
    """(B, R, C) in groups of rows that never cross a batch -> q, scale (B, R), zero (B, R)."""
    q, scale, zero = np.empty_like(x), np.empty(x.shape[:2], F), np.empty(x.shape[:2], F)
    for batch in range(x.shape[0]):
        for row in range(0, x.shape[1], group):
            at = (batch, slice(row, row + group))
            q[at], scale[at], zero[at] = quantize(x[at], qmax, unipolar, rounding)
    return q, scale, zero


# --- public quantizers ---------------------------------------------------------------------------


def _given_range(x, scale, zero, qmax, unipolar):
    """Levels under a given range: NaN and Inf elements alone are level 0."""
    finite = np.isfinite(x)
    with np.errstate(all="ignore"):
        q = levels_double(np.where(finite, x, F(0)), scale, zero, qmax, unipolar)
    return np.where(finite, q, F(0))


def _codes(q, qmax, levels, dtype=np.int16):
    return boundary(q, qmax, levels).astype(dtype), np.sign(q).astype(np.int8)


def fused_quantize_bipolar(x, abs_max, sc_prec, rng_levels=None):
    qmax = 2 ** (sc_prec - 1) - 1
    scale, zero = affine_double(0.0, abs_max, qmax, False)
    q = _given_range(as_float32(x), scale, zero, qmax, False)
    return (*_codes(q, qmax, rng_levels or 2**sc_prec), scale)


def fused_quantize_bipolar_perrow(x, sc_prec, rng_levels=None):
    qmax = 2 ** (sc_prec - 1) - 1
    q, scale, _ = quantize_rows(as_float32(x)[None], 1, qmax, rounding="multiply")
    return (*_codes(q[0], qmax, rng_levels or 2**sc_prec), scale[0])


def fused_quantize_unipolar(x, fp_max, fp_min, sc_prec, compute_sum=False, rng_levels=None):
    qmax = 2**sc_prec - 1
    scale, zero = affine_double(fp_min, fp_max, qmax, True)
    q = _given_range(as_float32(x), scale, zero, qmax, True)
    code, _ = _codes(q, qmax, rng_levels or 2**sc_prec, np.int32)
    return code, scale, zero, q.astype(np.int64).sum(1).astype(F) if compute_sum else None


def grouped_symmetric(x, g, qmax):
    """(R, C) or (B, R, C), as the operator."""
    x = as_float32(x)
    q, scale, _ = quantize_rows(x if x.ndim == 3 else x[None], g, qmax)
    q, scale = q.reshape(x.shape), scale.reshape(x.shape[:-1])
    return scale, q, np.where(q < 0, -1, 1).astype(np.int8)


def grouped_asymmetric(x, g, qmax):
    """(R, C) or (B, R, C), as the operator."""
    x = as_float32(x)
    q, scale, zero = quantize_rows(x if x.ndim == 3 else x[None], g, qmax, unipolar=True)
    return scale.reshape(x.shape[:-1]), zero.reshape(x.shape[:-1]), q.reshape(x.shape)
