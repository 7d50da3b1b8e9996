"""Hypothesis strategies: tensors of every kind, RNG configs, environments and whole calls."""

import numpy as np
import torch
from hypothesis import strategies as st
from support import DTYPES

INTERESTING = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70)


def sizes(most):
    """0 to `most`, more often at the edges of blocks, seldom 0."""
    edges = st.sampled_from([size for size in INTERESTING if 0 < size <= most])
    return st.one_of(edges, edges, st.integers(0, most))


# --- tensors -------------------------------------------------------------------------------------

KINDS = ("normal", "positive", "heavy", "sparse", "zero", "constant", "tiny", "huge", "ties")


def _values(kind, shape, rng):
    x = rng.standard_normal(shape)
    if kind == "positive":
        return np.abs(x)
    if kind == "heavy":
        return x**5
    if kind == "sparse":  # with zeros of both signs
        return x * rng.integers(-1, 2, shape) * 0.0 + x * (rng.random(shape) < 0.2)
    if kind == "zero":
        return x * 0.0
    if kind == "constant":
        return np.full(shape, x.flat[0] if x.size else 0.0)
    if kind == "tiny":  # below the smallest range, down to subnormals
        return x * 10.0 ** rng.integers(-45, -4, shape)
    if kind == "huge":  # ranges that overflow float32
        return np.clip(x, -1, 1) * 3.4e38
    if kind == "ties":  # halves of a level for qmax = 127 and others
        return rng.integers(-254, 255, shape) / 2.0
    return x


def _layout(x, layout):
    """The same values in another memory layout (expanded: the first row's, or column's, values)."""
    if layout == "transposed":
        return x.transpose(-2, -1).contiguous().transpose(-2, -1)
    if layout == "sliced":
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 3), 7.0, dtype=x.dtype)
        view = wide[..., 1 : 2 * x.shape[-1] + 1 : 2]
        return view.copy_(x)
    if layout == "offset":
        flat = torch.zeros(x.numel() + 1, dtype=x.dtype)
        return flat[1:].view(x.shape).copy_(x)
    if layout == "rows" and x.shape[-2] > 1:
        return x[..., :1, :].expand(x.shape)
    if layout == "columns" and x.shape[-1] > 1:
        return x[..., :1].expand(x.shape)
    if layout == "batch" and x.dim() == 3 and x.shape[0] > 1:
        return x[:1].expand(x.shape)
    return x


@st.composite
def tensors(draw, shape, dtype=None):
    """A float tensor of this shape: any values (now and then NaN or Inf), dtype and strides."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(KINDS))
    values = np.atleast_1d(np.asarray(_values(kind, shape, rng))).reshape(shape)
    if values.size and draw(st.integers(0, 5)) == 0:
        holes = rng.integers(0, values.size, size=rng.integers(1, 3))
        values.reshape(-1)[holes] = rng.choice([np.nan, np.inf, -np.inf], size=holes.size)
    dtype = dtype or draw(st.sampled_from((torch.float32, *DTYPES)))
    layouts = ("plain", "transposed", "sliced", "offset", "rows", "columns", "batch")
    return _layout(torch.from_numpy(values).to(dtype), draw(st.sampled_from(layouts)))


# --- configs and environments --------------------------------------------------------------------


def _generator(rng, prec):
    kind = rng.choice(["q", "k", "sobol", "lfsr", "true_random"])
    if kind == "sobol":
        seed = [int(2 * rng.integers(2**i) + 1) for i in range(prec)]
        return {"type": "sobol", "seed": seed}
    if kind == "lfsr":
        taps = rng.permutation(prec)[: rng.integers(1, prec + 1)]
        return {
            "type": "lfsr",
            "seed": int(rng.integers(1, 2**prec)),
            "taps": [int(tap) for tap in taps],
        }
    if kind == "true_random":
        return {"type": "true_random", "seed": int(rng.integers(2 ** int(rng.integers(1, 64))))}
    return {"type": "sobol", "seed": None, "seed_type": str(kind)}


def _sng(rng, pool, prec):
    sng = {"rng_id": int(rng.integers(pool))}
    if rng.random() < 0.5:
        sng["scramble"] = [int(bit) for bit in rng.permutation(prec)]
    if rng.random() < 0.4:
        sng["complement"] = bool(rng.random() < 0.7)
    return sng


def make_config(seed, positions, prec):
    """A config of mixed generators, a plain dict; some sngs repeat, as they do in practice."""
    rng = np.random.default_rng(seed)
    pool = [_generator(rng, prec) for _ in range(rng.integers(1, 5))]
    lists = {}
    for operand in "qk":
        distinct = [_sng(rng, len(pool), prec) for _ in range(rng.integers(1, positions + 2))]
        lists[operand] = [distinct[rng.integers(len(distinct))] for _ in range(positions)]
    return {"rng_pool": pool, "sng": lists}


@st.composite
def environments(draw):
    """SC_* variables, most often none."""
    if draw(st.booleans()):
        return {}
    choices = {
        "SC_OWEN_MODE": (None, "", "bitrev", "counter", "off", "random"),
        "SC_DISABLE_OWEN": (None, None, "", "0", "1"),
        "SC_SCRAMBLE_RESCALE": (None, "", "0", "1"),
        "SC_SCRAMBLE_MASKS": (None, "", "1", "2", "8", "64", "256", str(2**30)),
    }
    drawn = {name: draw(st.sampled_from(values)) for name, values in choices.items()}
    return {name: value for name, value in drawn.items() if value is not None}


# --- calls ---------------------------------------------------------------------------------------


def _count(most):
    return st.one_of(
        st.none(), st.sampled_from((1, most // 2, most - 1, most)), st.integers(1, most)
    )


@st.composite
def calls(draw):
    """(a, b, keyword arguments, environment) of a valid sc_matmul call."""
    prec = draw(st.one_of(st.just(8), st.integers(2, 12)))
    batched = draw(st.booleans())
    most = (24 if batched else 70) if prec <= 9 else 17
    n, m, depth = draw(sizes(most)), draw(sizes(most)), draw(sizes(most))
    batch = (draw(st.integers(0, 3)),) if batched else ()
    modes = [("per_row", "bipolar")] * 4 + [("per_row", "unipolar")]
    modes += [("per_tensor", "bipolar"), ("per_tensor", "unipolar")]
    modes += [("per_head", "bipolar")] * 2 if batched else []
    granularity, mode = draw(st.sampled_from(modes))
    knobs = {"granularity": granularity, "mode": mode, "sc_prec": prec}
    halve = knobs["halve_bipolar_stoc_len"] = draw(st.booleans())
    most_length = 2 ** (prec - 1) if halve and mode == "bipolar" else 2**prec
    knobs["stoc_len"] = draw(_count(most_length))
    knobs["rng_levels"] = draw(_count(most_length))
    if granularity == "per_row":
        knobs["group_a"] = draw(st.sampled_from((1, 1, 2, 3, max(1, n), n + 5)))
        knobs["group_b"] = draw(st.sampled_from((1, 1, 2, 3, max(1, m), 10**9)))
    if granularity == "per_row" and mode == "bipolar" and not batched and draw(st.booleans()):
        knobs["chunk_d"] = draw(sizes(depth + 3)) or 1
    positions = depth
    chunk = knobs.get("chunk_d", 0)
    if chunk and (depth > chunk or draw(st.booleans())):
        positions = chunk
    if draw(st.sampled_from((False, False, True))):
        knobs["config"] = make_config(draw(st.integers(0, 2**32 - 1)), positions, prec)
    if draw(st.sampled_from((False, False, True))):
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        scales = torch.from_numpy(np.exp(rng.standard_normal(depth)))
        knobs["smooth_scales"] = scales.to(draw(st.sampled_from(DTYPES)))
    a, b = draw(tensors((*batch, n, depth))), draw(tensors((*batch, m, depth)))
    return a, b, knobs, draw(environments())
