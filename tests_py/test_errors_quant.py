"""Quantizer arguments that do not fit: a ValueError of one line, from Python and torch.ops."""

import math

import pytest
import torch
from support import assert_value_error

from scmp_kernels import quant

A = (2, 3)
DTYPES = "float16, bfloat16, float32 or float64"

both_devices = pytest.mark.parametrize("device", ["cpu", "meta"])
FUSED = {
    "fused_quantize_bipolar": (1.0,),
    "fused_quantize_bipolar_perrow": (),
    "fused_quantize_unipolar": (1.0, -1.0),
}
both_modules = pytest.mark.parametrize("module", [quant, torch.ops.scmp], ids=["python", "ops"])


@pytest.mark.parametrize("name", FUSED)
@both_devices
@both_modules
def test_fused_quantizers(module, device, name):
    function, given = getattr(module, name), FUSED[name]
    x = torch.ones(A, device=device)
    for args, knobs, message in (
        ((x, *given, 1), {}, "sc_prec must be in [2, 12], got 1"),
        ((x, *given, 13), {}, "sc_prec must be in [2, 12], got 13"),
        ((x, *given, 4), {"rng_levels": 0}, "rng_levels must be in [1, 16] for sc_prec=4, got 0"),
        ((x, *given, 4), {"rng_levels": 17}, "rng_levels must be in [1, 16] for sc_prec=4, got 17"),
        ((x[0], *given, 8), {}, "x must be 2D, got 1D of shape [3]"),
        ((x[None], *given, 8), {}, "x must be 2D, got 3D of shape [1, 2, 3]"),
        ((x.short(), *given, 8), {}, f"x must be {DTYPES}, got Short"),
    ):
        assert_value_error(lambda a=args, k=knobs: function(*a, **k), f"{name}: {message}")


@both_devices
@both_modules
def test_ranges_that_are_given(module, device):
    x = torch.ones(A, device=device)
    for value, shown in ((-1.0, "-1"), (math.nan, "nan"), (math.inf, "inf"), (-1e-9, "-1e-09")):
        assert_value_error(
            lambda value=value: module.fused_quantize_bipolar(x, value, 8),
            f"fused_quantize_bipolar: abs_max must be finite and at least 0, got {shown}",
        )
    for high, low, message in (
        (math.nan, 0.0, "fp_max must be finite, got nan"),
        (math.inf, 0.0, "fp_max must be finite, got inf"),
        (1.0, -math.inf, "fp_min must be finite, got -inf"),
        (1.0, math.nan, "fp_min must be finite, got nan"),
        (0.0, 0.5, "fp_min must not exceed fp_max = 0, got 0.5"),
        (
            1e308,
            -1e308,
            "the range fp_max - fp_min must be finite, got fp_max = 1e+308, fp_min = -1e+308",
        ),
    ):
        assert_value_error(
            lambda high=high, low=low: module.fused_quantize_unipolar(x, high, low, 8),
            f"fused_quantize_unipolar: {message}",
        )


@pytest.mark.parametrize("name", ["grouped_symmetric_quant", "grouped_asymmetric_quant"])
@both_devices
def test_grouped_quantizers(name, device):
    x = torch.ones(A, device=device)
    for function in (getattr(torch.ops.scmp, name), getattr(quant, f"_{name}")):
        for args, message in (
            ((x, 0, 127), "g must be at least 1, got 0"),
            ((x, 1, 0), "qmax must be in [1, 16777216], got 0"),
            ((x, 1, 2**24 + 1), "qmax must be in [1, 16777216], got 16777217"),
            ((x.int(), 1, 127), f"x must be {DTYPES}, got Int"),
        ):
            assert_value_error(lambda a=args, f=function: f(*a), f"{name}: {message}")
    operator, function = getattr(torch.ops.scmp, name), getattr(quant, f"_{name}")
    assert_value_error(
        lambda: operator(x[0], 1, 7), f"{name}: x must be 2D or 3D, got 1D of shape [3]"
    )
    assert_value_error(
        lambda: function(x[None], 1, 7), f"_{name}: x must be 2D, got 3D of shape (1, 2, 3)"
    )


def test_grouped_batched():
    assert_value_error(
        lambda: quant._grouped_symmetric_quant_batched(torch.ones(2, 3), 1, 7),
        "_grouped_symmetric_quant_batched: x must be 3D, got 2D of shape (2, 3)",
    )
