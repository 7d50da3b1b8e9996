"""What the tests share: forcing a kernel, setting the environment, comparing bits."""

import importlib.util
import os
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from scmp_kernels import _C

KERNELS = _C.cpu_kernels()
VARIABLES = ("SC_OWEN_MODE", "SC_DISABLE_OWEN", "SC_SCRAMBLE_RESCALE", "SC_SCRAMBLE_MASKS")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
ROOT = Path(__file__).resolve().parents[1]
GOLDEN = Path(os.environ.get("SCMP_GOLDEN", ROOT.parent / "shared" / "golden"))


on_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_cuda)])


def benchmark_shapes():
    """The module of shapes and knobs that the benchmarks run, by its path."""
    spec = importlib.util.spec_from_file_location(
        "benchmark_shapes", ROOT / "benchmarks" / "shapes.py"
    )
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def environment(variables):
    """Set these variables and unset the other SC_* ones for a while."""
    before = {name: os.environ.pop(name, None) for name in {*VARIABLES, *variables}}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def forced(kernel):
    """Force one CPU kernel for a while."""
    before = _C.cpu_kernel()
    _C.set_cpu_kernel(kernel)
    try:
        yield
    finally:
        _C.set_cpu_kernel(before)


@contextmanager
def forced_on_cuda(kernel):
    """Force one CUDA kernel for a while."""
    before = _C.cuda_kernel()
    _C.set_cuda_kernel(kernel)
    try:
        yield
    finally:
        _C.set_cuda_kernel(before)


def on_cuda_kernel(kernel, call):
    """What `call` returns with a CUDA kernel forced; None where that kernel refuses the problem."""
    with forced_on_cuda(kernel):
        try:
            return call()
        except ValueError as error:
            if f"kernel {kernel} cannot run this" not in str(error):
                raise
            return None


@contextmanager
def threads(count):
    """Let torch use `count` threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bits(x):
    """A tensor or array as integers that are equal when the bits are; NaNs are all alike."""
    x = np.asarray(x)
    if x.dtype.kind != "f":
        return x
    canonical = np.where(np.isnan(x), np.array(np.nan, x.dtype), x)
    return canonical.view(f"i{x.dtype.itemsize}")


def assert_same_bits(actual, expected, context=""):
    """Tensors, of any device, or arrays: same dtype, shape and bits (NaNs equal in any payload)."""
    actual, expected = (
        np.asarray(x.cpu() if isinstance(x, torch.Tensor) else x) for x in (actual, expected)
    )
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, context
    wrong = bits(actual) != bits(expected)
    if wrong.any():
        first = tuple(int(i[0]) for i in np.nonzero(wrong))
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.size} differ, first at {first}: "
            f"{actual[first]!r} instead of {expected[first]!r} {context}"
        )


def randn(*shape, seed=0, **kwargs):
    """torch.randn of its own generator."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), **kwargs)


def small_config(seed=None):
    """A plain config of two positions at 3 bits."""
    rng = {"type": "true_random", "seed": seed} if seed is not None else {"type": "sobol"}
    sng = {"rng_id": 0, "scramble": [1, 0, 2]}
    return {"rng_pool": [rng], "sng": {"q": [sng, sng], "k": [sng, dict(sng)]}}


def assert_value_error(call, message):
    """`call()` raises a ValueError of exactly this text, one line of it."""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$") as caught:
        call()
    assert type(caught.value) is ValueError and "\n" not in str(caught.value)
