"""sc_conv2d against torch's unfold and sc_matmul: every geometry, knob, layout and error."""

import pytest
import torch
import torch.nn.functional as F
from conv_cases import convolutions, lowered, padded
from hypothesis import given, settings
from support import assert_same_bits, forced, randn

from scmp_kernels import conv2d_lowered_rows, sc_conv2d, sc_matmul
from scmp_kernels.sc.config_helpers import make_sobol_altseed_config


@settings(max_examples=150)
@given(convolutions())
def test_any_convolution(conv):
    x, weight, bias, stride, padding, dilation, groups, knobs = conv
    with forced("reference"):
        expected = lowered(x, weight, bias, stride, padding, dilation, groups, **knobs)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    out = sc_conv2d(x, weight, bias, **geometry, **knobs)
    assert_same_bits(out, expected)
    plain = F.conv2d(x, weight, bias, **geometry)
    assert out.shape == plain.shape


@pytest.mark.parametrize("padding", [0, 1, (2, 1), "same", "valid"])
def test_the_lowered_rows(padding):
    x, weight = randn(2, 3, 7, 6), randn(4, 3, 3, 2, seed=1)
    rows = conv2d_lowered_rows(x, weight, padding=padding)
    pairs = padding if isinstance(padding, (str, tuple)) else (padding, padding)
    columns = F.unfold(padded(x, (3, 2), (1, 1), pairs, (1, 1)), (3, 2))
    assert torch.equal(rows, columns.mT.reshape(-1, 18))
    y = sc_conv2d(x, weight, padding=padding)
    flat = sc_matmul(rows, weight.reshape(4, -1))
    assert_same_bits(y.permute(0, 2, 3, 1).reshape(-1, 4).contiguous(), flat)
    assert conv2d_lowered_rows(x, weight, groups=3) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_may_differ(dtype):
    x, weight, bias = randn(2, 3, 5, 5).to(dtype), randn(4, 3, 3, 3, seed=1), randn(4).half()
    out = sc_conv2d(x, weight, bias, padding=1)
    assert out.dtype == dtype
    assert torch.equal(out, sc_conv2d(x.float(), weight, bias.float(), padding=1).to(dtype))


def test_layouts_and_unbatched_input():
    x, weight = randn(2, 3, 5, 6), randn(4, 3, 3, 3, seed=1)
    y = sc_conv2d(x, weight)
    last = sc_conv2d(x.to(memory_format=torch.channels_last), weight)
    assert y.is_contiguous() and last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, last)
    assert torch.equal(sc_conv2d(x[0], weight), sc_conv2d(x[:1], weight)[0])


def test_empty_sizes():
    weight = randn(4, 3, 3, 3)
    assert sc_conv2d(torch.empty(0, 3, 5, 5), weight).shape == (0, 4, 3, 3)
    assert sc_conv2d(randn(2, 3, 5, 5), torch.empty(0, 3, 3, 3)).shape == (2, 0, 3, 3)
    bias = randn(4)
    out = sc_conv2d(torch.empty(2, 0, 5, 5), torch.empty(4, 0, 3, 3), bias)
    assert torch.equal(out, bias.view(1, 4, 1, 1).expand(2, 4, 3, 3))


def test_a_config_covers_one_products_columns():
    config = make_sobol_altseed_config(18, 18)
    x, weight = randn(2, 4, 5, 5), randn(6, 2, 3, 3, seed=1)
    with forced("reference"):
        expected = lowered(x, weight, None, (1, 1), (0, 0), (1, 1), 2, config=config)
    assert_same_bits(sc_conv2d(x, weight, groups=2, config=config), expected)


@pytest.mark.parametrize("groups", [1, 4])
def test_gradients_are_those_of_the_convolution(groups):
    x = randn(2, 4, 5, 5).requires_grad_()
    weight = randn(4, 4 // groups, 3, 3, seed=1).requires_grad_()
    bias = randn(4, seed=2).requires_grad_()
    g = randn(2, 4, 5, 5, seed=3)
    geometry = {"padding": 1, "groups": groups}
    mine = torch.autograd.grad(sc_conv2d(x, weight, bias, **geometry), (x, weight, bias), g)
    theirs = torch.autograd.grad(F.conv2d(x, weight, bias, **geometry), (x, weight, bias), g)
    for actual, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_compile_and_export():
    x, weight = randn(2, 3, 6, 6), randn(4, 3, 3, 3, seed=1)

    class Conv(torch.nn.Module):
        def forward(self, x):
            return sc_conv2d(x, weight, padding=1, stride=2)

    expected = Conv()(x)
    assert torch.equal(torch.compile(Conv(), fullgraph=True)(x), expected)
    exported = torch.export.export(Conv(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("b")}})
    bigger = randn(5, 3, 6, 6, seed=2)
    assert torch.equal(exported.module()(bigger), Conv()(bigger))


def test_errors():
    x, weight = torch.ones(2, 4, 5, 5), torch.ones(6, 2, 3, 3)
    for run, text in [
        (lambda: sc_conv2d(x[0, 0], weight), "sc_conv2d: x must be 3D or 4D, got 2D"),
        (lambda: sc_conv2d(x, weight[0]), "sc_conv2d: weight must be 4D, got 3D"),
        (lambda: sc_conv2d(x, weight, stride=0), "sc_conv2d: stride must be at least 1, got [0"),
        (lambda: sc_conv2d(x, weight, groups=2, padding=-1), "sc_conv2d: padding must be at least"),
        (lambda: sc_conv2d(x, weight, dilation=0), "sc_conv2d: dilation must be at least 1"),
        (lambda: sc_conv2d(x, weight, groups=0), "sc_conv2d: groups must be at least 1, got 0"),
        (lambda: sc_conv2d(x, weight), "sc_conv2d: weight must have shape (Cout, Cin / groups"),
        (
            lambda: sc_conv2d(x, weight[:5], groups=2),
            "sc_conv2d: Cout must be a multiple of groups",
        ),
        (
            lambda: sc_conv2d(x, weight, groups=2, dilation=3),
            "sc_conv2d: x with padding must be at least as large as the dilated kernel, 7, got 5",
        ),
        (
            lambda: sc_conv2d(x, weight, groups=2, padding="full"),
            "sc_conv2d: padding must be 'same', 'valid', an int or a pair, got 'full'",
        ),
        (
            lambda: sc_conv2d(x, weight, groups=2, padding="same", stride=2),
            "sc_conv2d: padding 'same' needs stride 1, got 2",
        ),
        (
            lambda: sc_conv2d(x, weight, torch.ones(3), groups=2),
            "sc_conv2d: bias must have shape (Cout,) = (6,), got [3]",
        ),
        (
            lambda: sc_conv2d(x.int(), weight, groups=2),
            "sc_conv2d: x must be float16, bfloat16, float32 or float64, got Int",
        ),
        (
            lambda: sc_conv2d(x, torch.ones(4, 1, 3, 3), groups=4, granularity="per_tensor"),
            "sc_conv2d: a depthwise convolution needs granularity 'per_row', got 'per_tensor'",
        ),
        (
            lambda: sc_conv2d(x, torch.ones(4, 1, 3, 3), groups=4, chunk_d=8),
            "sc_conv2d: a depthwise convolution needs chunk_d 0 or at least kh * kw = 9, got 8",
        ),
        (
            lambda: sc_conv2d(x, weight, groups=2, smooth_scales=torch.ones(3)),
            "sc_conv2d: smooth_scales must have shape (Cin * kh * kw,) = (36,), got [3]",
        ),
        (
            lambda: sc_conv2d(x, weight, groups=2, granularity="per_head"),
            "sc_conv2d: granularity must be 'per_row' or 'per_tensor', got 'per_head'",
        ),
        (lambda: sc_conv2d(x, weight, groups=2, stoc_len=0), "sc_conv2d: stoc_len must be in"),
        (lambda: sc_conv2d(x, weight, groups=2, sc_prec=13), "sc_conv2d: sc_prec must be"),
        (lambda: sc_conv2d(x, weight, groups=2, config={}), "sc_conv2d: config"),
        (
            lambda: sc_conv2d(x.to("meta"), weight.to("meta"), groups=2, stoc_len=0),
            "sc_conv2d: stoc_len must be in",
        ),
    ]:
        with pytest.raises(ValueError, match="."):
            run()
        try:
            run()
        except ValueError as error:
            assert str(error).startswith(text), str(error)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@settings(max_examples=60)
@given(convolutions())
def test_cuda_equals_cpu(conv):
    x, weight, bias, stride, padding, dilation, groups, knobs = conv
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    expected = sc_conv2d(x, weight, bias, **geometry, **knobs)
    on_gpu = {k: v.cuda() if torch.is_tensor(v) else v for k, v in knobs.items()}
    bias = None if bias is None else bias.cuda()
    out = sc_conv2d(x.cuda(), weight.cuda(), bias, **geometry, **on_gpu)
    assert_same_bits(out.cpu(), expected)


# --- stream lengths by row -----------------------------------------------------------------------


def uniform_positions(x, weight, lengths, **knobs):
    """Position by position the uniform call at the position's length; zeros at length 0."""
    bare = sc_conv2d(x, weight, stoc_len=1, **knobs)
    out = torch.zeros_like(bare)
    by_position = lengths.view(bare.shape[0], 1, *bare.shape[2:])
    for length in lengths.unique().tolist():
        if length:
            whole = sc_conv2d(x, weight, stoc_len=length, **knobs)
            out = torch.where(by_position == length, whole, out)
    return out


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("knobs", [{}, {"halve_bipolar_stoc_len": True}, {"chunk_d": 64}])
def test_lengths_by_position(groups, knobs):
    x, weight = randn(2, 4, 6, 5), randn(4, 4 // groups, 3, 3, seed=1)
    most = 128 if "halve_bipolar_stoc_len" in knobs else 256
    g = torch.Generator().manual_seed(3)
    lengths = torch.randint(0, most + 1, (2 * 6 * 5,), generator=g)
    lengths[:3] = torch.tensor([0, most, most - 1])
    knobs = {"padding": 1, "groups": groups, **knobs}
    expected = uniform_positions(x, weight, lengths, **knobs)
    assert_same_bits(sc_conv2d(x, weight, stoc_len=lengths, **knobs), expected)
    bias = randn(4, seed=4)
    with_bias = sc_conv2d(x, weight, bias, stoc_len=lengths, **knobs)
    assert_same_bits(with_bias, expected + bias.view(1, 4, 1, 1))


def test_lengths_by_position_and_chunk():
    x, weight = randn(2, 4, 6, 5), randn(3, 4, 3, 3, seed=1)
    rows = conv2d_lowered_rows(x, weight, padding=1)
    rungs = torch.arange(60 * 3).view(60, 3) % 4
    knobs = {"chunk_d": 16, "rung_table": rungs, "level_lens": [256, 64, 0, 8]}
    flat = sc_matmul(rows, weight.view(3, -1), **knobs)
    expected = flat.view(2, 6, 5, 3).permute(0, 3, 1, 2).contiguous()
    assert_same_bits(sc_conv2d(x, weight, padding=1, **knobs), expected)
    lengths = torch.tensor(knobs["level_lens"])[rungs]
    assert_same_bits(sc_conv2d(x, weight, padding=1, chunk_d=16, stoc_len=lengths), expected)


def test_errors_of_lengths_by_position():
    x, weight, depthwise = randn(1, 4, 5, 5), randn(2, 4, 3, 3), randn(4, 1, 3, 3)
    lengths = torch.full((8,), 64)
    with pytest.raises(ValueError, match=r"row_stoc_len must have shape \(N,\) = \(9,\), or"):
        sc_conv2d(x, weight, stoc_len=lengths)
    with pytest.raises(ValueError, match=r"row_stoc_len must have shape \(B \* Hout \* Wout,\)"):
        sc_conv2d(x, depthwise, groups=4, stoc_len=lengths)
    table = {"rung_table": torch.zeros(9, 1, dtype=torch.int32), "level_lens": [64], "chunk_d": 9}
    with pytest.raises(ValueError, match="rung_table does not apply to a depthwise convolution"):
        sc_conv2d(x, depthwise, groups=4, **table)
