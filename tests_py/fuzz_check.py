"""What the fuzz asserts of a call: its outcome, on every kernel, and without values."""

import re
from contextlib import contextmanager

import numpy as np
import torch
from support import KERNELS, assert_same_bits, forced, threads

from scmp_kernels import _C

# What torch's own schema matching says of a wrong Python type.
SCHEMA = re.compile(r"^scmp::\w+\(\) Expected a value of type .* for argument ")
REFUSED = "refused by torch"
TEXT = re.compile(r"[\w.]+(\.\w+)?: \S")


def outcome(draw, call):
    """(result, None) or (None, text of the ValueError, REFUSED where torch's schema refuses it).

    Any other exception is passed on.
    """
    try:
        return call(), None
    except ValueError as error:
        text = str(error)
        if not SCHEMA.search(text):
            assert type(error) is ValueError and "\n" not in text and len(text) < 1000, repr(text)
            assert TEXT.match(text), f"no operator in front: {text}"
        return None, text
    except (TypeError, RuntimeError, OverflowError) as error:
        if not SCHEMA.search(str(error)):
            raise
        return None, REFUSED


def as_array(x):
    """What numpy can hold of a tensor: bfloat16 as float32."""
    if not isinstance(x, torch.Tensor):
        return x
    return (x.float() if x.dtype == torch.bfloat16 else x).detach().numpy()


def same(actual, expected, context=""):
    """Results of a call, tensors by their bits."""
    if isinstance(expected, torch.Tensor) and expected.device.type == "meta":
        assert actual.shape == expected.shape and actual.dtype == expected.dtype, context
    elif isinstance(expected, (torch.Tensor, np.ndarray)):
        assert_same_bits(as_array(actual), as_array(expected), context)
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected), context
        for x, y in zip(actual, expected, strict=True):
            same(x, y, context)
    else:
        assert type(actual) is type(expected) and actual == expected, (actual, expected, context)


@contextmanager
def cache_limit(limit):
    """Another limit of the RNG cache for a while; None: the one it has."""
    before = _C.rng_cache_stats()["limit"]
    _C.set_rng_cache_limit(before if limit is None else limit)
    try:
        yield
    finally:
        _C.set_rng_cache_limit(before)


def on_kernels(draw, call):
    """The outcome of a call, the same on the reference and on another kernel."""
    with forced("reference"):
        expected = outcome(draw, call)
    kernel, count = draw.choice([*KERNELS[1:], "auto"]), draw.choice((1, 1, 1, 1, 2, 3))
    with forced(kernel), threads(count), cache_limit(draw.choice((None, None, 0, 1 << 16))):
        actual = outcome(draw, call)
    assert actual[1] == expected[1], (kernel, actual, expected)
    if expected[1] is None:
        same(actual[0], expected[0], f"({kernel} kernel)")
    return expected


def on_meta(draw, call, found):
    """Without values: the same shapes, dtypes and errors, but for errors about values."""
    if draw.wrong_types:  # a tensor of one number may stand for it, with a value
        return
    result, text = outcome(draw, call)
    if found[1] is not None:
        about_values = "positive and finite" in found[1] or " at row " in found[1]
        if found[1] != REFUSED and not about_values:
            assert text == found[1], f"on meta {text or 'no error'}, on cpu {found[1]}"
        return
    assert text is None, f"on meta {text}, no error on cpu"
    cpu, meta = (
        [(x.shape, x.dtype) for x in flat(y) if torch.is_tensor(x)] for y in (found[0], result)
    )
    assert cpu == meta, (cpu, meta)


def flat(x):
    return x if isinstance(x, (tuple, list)) else [x]


def to_meta(x):
    return x.detach().to("meta") if isinstance(x, torch.Tensor) else x
