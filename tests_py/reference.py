"""What the operators compute, a second time: numpy, no C++, one float32 operation per line of text.

Written from docs/semantics.md, not from the kernels. Slow and plain on purpose; the sequences come
from the golden generators of scmp_kernels.sc.rng, the levels from reference_quant.
"""

import functools
import json

import numpy as np
from reference_quant import F, as_float32, boundary, quantize, quantize_rows

from scmp_kernels.sc.rng import create_rng

# --- sequences -----------------------------------------------------------------------------------

_DEFAULT = {"q": {"type": "sobol"}, "k": {"type": "sobol", "seed_type": "k"}}


@functools.lru_cache(maxsize=256)
def _generator(text, prec):
    rng = json.loads(text)
    return create_rng(rng.pop("type"), prec, **rng).simulate()


def sequence(config, operand, position, prec):
    """The 2**prec values that drive one position of operand "q" or "k"."""
    if config is None:
        return _generator(json.dumps(_DEFAULT[operand]), prec)
    sng = config["sng"][operand][position]
    values = _generator(json.dumps(config["rng_pool"][sng["rng_id"]]), prec)
    if sng.get("scramble") is not None:
        values = sum(((values >> bit) & 1) << i for i, bit in enumerate(sng["scramble"]))
    return 2**prec - 1 - values if sng.get("complement") else values


def scramble_masks(mode, count, prec):
    """The first `count` XOR masks of a scramble mode."""
    if mode == "counter":
        return list(range(count))
    if mode == "bitrev":
        return [int(f"{j:0{prec}b}"[::-1], 2) for j in range(count)]
    permutation, state, word = list(range(2**prec)), 0x5A5A5A5A, 2**64 - 1
    for i in range(2**prec - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) & word
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        z ^= z >> 31
        j = z % (i + 1)
        permutation[i], permutation[j] = permutation[j], permutation[i]
    return permutation[:count]


def streams(config, positions, prec, length, levels, env):
    """Prepared sequences (ra, rb), each (positions, length), on the grid of `levels`."""
    base = 2**prec
    mode = "off" if env.get("SC_DISABLE_OWEN") == "1" else env.get("SC_OWEN_MODE") or "bitrev"
    if levels == base:
        scrambled = length < base
    else:
        scrambled = env.get("SC_SCRAMBLE_RESCALE") != "0"
    masks = [0]
    if scrambled and mode != "off":
        count = min(int(env.get("SC_SCRAMBLE_MASKS") or 64), base)
        masks = scramble_masks(mode, count, prec)
    result = []
    for operand in "qk":
        rows = np.empty((positions, length), np.int64)
        for d in range(positions):
            rows[d] = sequence(config, operand, d, prec)[:length] ^ masks[d % len(masks)]
        result.append(rows * levels // base if levels != base else rows)
    return result


# --- product -------------------------------------------------------------------------------------


def _quantize_operand(x, granularity, group, qmax, unipolar, chunked):
    if granularity == "per_row":
        return quantize_rows(x, group, qmax, unipolar, "multiply" if chunked else "divide")
    if granularity == "per_head":
        return quantize_rows(x, max(1, x.shape[1]), qmax, False, "multiply")
    q, scale, zero = quantize(x, qmax, unipolar, "double")
    return q, np.full(x.shape[:2], scale, np.float64), np.full(x.shape[:2], zero, F)


def counts(ra, rb, a_codes, b_codes):
    """Ones of one position: codes (N,) and (M,) -> (N, M); b's generator waits while a is off."""
    on = (ra < a_codes[:, None]).sum(1)
    ones = np.zeros((len(b_codes), len(rb) + 1), np.int64)
    np.cumsum(rb < b_codes[:, None], axis=1, out=ones[:, 1:])
    return ones[:, on].T


def _product(qa, qb, qmax, levels, ra, rb):
    """Exact signed sums (N, M) of levels (N, C) and (M, C)."""
    a_codes, b_codes = boundary(qa, qmax, levels), boundary(qb, qmax, levels)
    total = np.zeros((len(qa), len(qb)), np.int64)
    for d in range(qa.shape[1]):
        signs = np.sign(qa[:, d, None]) * np.sign(qb[None, :, d])
        total += signs.astype(np.int64) * counts(ra[d], rb[d], a_codes[:, d], b_codes[:, d])
    return total


def _epilogue(total, c, granularity, unipolar, depth, a, b):
    """Float32 outputs (N, M) of one batch entry and chunk."""
    (qa, scale_a, zero_a), (qb, scale_b, zero_b) = a, b
    s = (scale_a[:, None] * scale_b[None, :]).astype(F)
    if granularity == "per_head":
        return total.astype(F) * (c * s)
    if not unipolar:
        return (total.astype(F) * c) * s
    zero_a, zero_b = zero_a[:, None], zero_b[None, :]
    sum_a = qa.astype(np.int64).sum(1).astype(F)[:, None]
    sum_b = qb.astype(np.int64).sum(1).astype(F)[None, :]
    if granularity == "per_tensor":
        z = (np.float64(depth) * zero_a.astype(np.float64) * zero_b.astype(np.float64)).astype(F)
    else:
        z = (F(depth) * zero_a) * zero_b
    return (total.astype(F) * c + ((-zero_b * sum_a - zero_a * sum_b) + z)) * s


@np.errstate(all="ignore")
def sc_matmul(
    a,
    b,
    granularity="per_row",
    *,
    mode="bipolar",
    sc_prec=8,
    stoc_len=None,
    chunk_d=0,
    group_a=1,
    group_b=1,
    rng_levels=None,
    config=None,
    halve_bipolar_stoc_len=False,
    smooth_scales=None,
    env=None,
):
    """(N, M) or (B, N, M) float32 array; `env` holds the SC_* variables of the call."""
    a, b = as_float32(a), as_float32(b)
    if smooth_scales is not None:
        a, b = a / as_float32(smooth_scales), b * as_float32(smooth_scales)
    a3, b3 = (a, b) if a.ndim == 3 else (a[None], b[None])
    (batches, n, depth), m = a3.shape, b3.shape[1]
    out = np.zeros((batches, n, m), F)
    if depth > 0:
        unipolar = mode == "unipolar"
        qmax = 2**sc_prec - 1 if unipolar else 2 ** (sc_prec - 1) - 1
        full = 2 ** (sc_prec - 1) if halve_bipolar_stoc_len and not unipolar else 2**sc_prec
        length, grid = stoc_len or full, rng_levels or full
        c = F(qmax**2) * (F(1) / F(length))
        chunked = 0 < chunk_d < depth
        width = chunk_d if chunked else depth
        ra, rb = streams(config, width, sc_prec, length, grid, env or {})
        for start in range(0, depth, width):
            part = slice(start, start + width)
            xa, xb = a3[:, :, part], b3[:, :, part]
            qa = _quantize_operand(xa, granularity, group_a, qmax, unipolar, chunked)
            qb = _quantize_operand(xb, granularity, group_b, qmax, unipolar, chunked)
            for i in range(batches):
                one_a, one_b = [x[i] for x in qa], [x[i] for x in qb]
                total = _product(one_a[0], one_b[0], qmax, grid, ra, rb)
                y = _epilogue(total, c, granularity, unipolar, depth, one_a, one_b)
                out[i] = out[i] + y if chunked else y
    return out if a.ndim == 3 else out[0]
