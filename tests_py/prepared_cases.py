"""What the tests of prepared operands share: one of each kind, how it is called and copied."""

import copy
import io
import json
import pickle

import numpy as np
import pytest
import reference
import torch
from reference_quant import as_float32, boundary
from strategies import make_config
from support import (
    KERNELS,
    assert_same_bits,
    environment,
    forced,
    randn,
)

from scmp_kernels import prepare, sc_matmul

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
# Knobs of batched calls.
BATCHED = {
    "rows": {"group_b": 3},
    "rows-unipolar": {"mode": "unipolar", "group_b": 4},
    "head": {"granularity": "per_head", **HALVED},
    "head-short": {"granularity": "per_head", "stoc_len": 100},
    "tensor": {"granularity": "per_tensor"},
    "tensor-unipolar": {"granularity": "per_tensor", "mode": "unipolar"},
    "scales": {"granularity": "per_head", "smooth_scales": torch.linspace(0.5, 2, 16)},
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


def parts_of(kind, **more):
    """b prepared by the operators: the tensors and the spec."""
    b = randn(6, 16, seed=1)
    knobs = KINDS[kind] | more
    if isinstance(knobs.get("config"), dict):
        knobs = knobs | {"config": json.dumps(knobs["config"])}
    return OPS.prepare(b, **knobs), OPS.prepare_spec(b.shape, **knobs)


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


class Layer(torch.nn.Module):
    """A prepared weight inside a model."""

    def __init__(self, b, **knobs):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(len(b)))
        self.weight = prepare(b, **knobs)

    def forward(self, a):
        return sc_matmul(a, self.weight, stoc_len=50) + self.bias


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
