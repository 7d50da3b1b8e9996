"""sc_conv2d with weights that were quantized once: the bits of the plain call."""

import copy
import pickle

import pytest
import torch
from conv_cases import convolutions
from hypothesis import assume, given, settings
from support import assert_same_bits, randn

from scmp_kernels import prepare, sc_conv2d, sc_matmul

FREE = ("group_a", "stoc_len")  # what a prepared weight leaves to the call


def prepared_call(conv, device="cpu"):
    """The output with a prepared weight, and that of the plain call."""
    x, weight, bias, stride, padding, dilation, groups, knobs = conv
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    expected = sc_conv2d(x, weight, bias, groups=groups, **geometry, **knobs)
    fixed = {
        k: v.to(device) if torch.is_tensor(v) else v for k, v in knobs.items() if k not in FREE
    }
    free = {k: v for k, v in knobs.items() if k in FREE}
    prepared = prepare(weight.to(device), groups=groups, **fixed)
    bias = None if bias is None else bias.to(device)
    return sc_conv2d(x.to(device), prepared, bias, **geometry, **free), expected


def can_be_prepared(conv):
    groups, knobs = conv[-2:]
    alone = not ({"smooth_scales", "chunk_d"} & knobs.keys() or "granularity" in knobs)
    return groups == 1 or alone


@settings(max_examples=150)
@given(convolutions())
def test_the_bits_of_the_plain_call(conv):
    assume(can_be_prepared(conv))
    out, expected = prepared_call(conv)
    assert_same_bits(out, expected)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@settings(max_examples=60)
@given(convolutions())
def test_cuda_has_the_bits_of_the_cpu(conv):
    assume(can_be_prepared(conv))
    out, expected = prepared_call(conv, "cuda")
    assert_same_bits(out.cpu(), expected)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("group_a", [1, 7])
def test_lengths_by_position(groups, group_a):
    x, weight = randn(2, 4, 6, 5), randn(4, 4 // groups, 3, 3, seed=1)
    lengths = torch.randint(0, 257, (60,), generator=torch.Generator().manual_seed(3))
    knobs = {"padding": 1, "stoc_len": lengths, "group_a": group_a}
    expected = sc_conv2d(x, weight, groups=groups, **knobs)
    assert_same_bits(sc_conv2d(x, prepare(weight, groups=groups), **knobs), expected)


def test_lengths_by_position_and_chunk():
    x, weight = randn(2, 4, 6, 5), randn(3, 4, 3, 3, seed=1)
    table = {"rung_table": torch.arange(180).view(60, 3) % 4, "level_lens": [256, 64, 0, 8]}
    expected = sc_conv2d(x, weight, padding="same", chunk_d=16, **table)
    out = sc_conv2d(x, prepare(weight, chunk_d=16), padding="same", **table)
    assert_same_bits(out, expected)


def test_what_it_says_of_itself():
    weight = randn(6, 2, 3, 5)
    dense = prepare(weight)
    assert (dense.shape, dense.kernel, dense.groups) == ((6, 30), (3, 5), 1)
    grouped = prepare(weight, groups=3)
    assert (grouped.shape, grouped.kernel, grouped.groups) == ((3, 2, 30), (3, 5), 3)
    matrix = prepare(weight.view(6, 30))
    assert (matrix.shape, matrix.kernel, matrix.groups) == ((6, 30), None, 1)
    a = randn(4, 30)  # a product takes what the weight lowers to
    assert_same_bits(sc_matmul(a, dense), sc_matmul(a, matrix))


def test_calling_copying_and_loading():
    x, weight = randn(1, 4, 5, 5), randn(6, 2, 3, 3)
    prepared = prepare(weight, groups=2)
    expected = sc_conv2d(x, weight, groups=2, padding=1)
    other = prepare(randn(2, 2, 1, 1))
    other.load_state_dict(prepared.state_dict())
    for twin in (copy.deepcopy(prepared), pickle.loads(pickle.dumps(prepared)), other):
        assert (twin.kernel, twin.groups) == ((3, 3), 2)
        assert_same_bits(twin(x, padding=1), expected)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_gradients_are_those_of_the_plain_call(groups):
    x, weight = randn(2, 4, 5, 5), randn(4, 4 // groups, 3, 3, seed=1)
    bias, g = randn(4, seed=2).requires_grad_(), randn(2, 4, 5, 5, seed=3)
    x.requires_grad_()
    out = sc_conv2d(x, prepare(weight, groups=groups), bias, padding=1)
    mine = torch.autograd.grad(out, (x, bias), g)
    plain = torch.nn.functional.conv2d(x, weight, bias, padding=1, groups=groups)
    theirs = torch.autograd.grad(plain, (x, bias), g)
    for actual, expected in zip(mine, theirs, strict=True):  # to the weight's quantization
        torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("groups", [1, 2])
def test_compile_export_and_script(groups):
    prepared = prepare(randn(4, 4 // groups, 3, 3, seed=1), groups=groups)

    class Conv(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = prepared

        def forward(self, x):
            return sc_conv2d(x, self.weight, padding="same")

    x, bigger = randn(2, 4, 6, 6), randn(5, 4, 6, 6, seed=2)
    assert torch.equal(torch.compile(Conv(), fullgraph=True)(x), Conv()(x))
    exported = torch.export.export(Conv(), (x,), dynamic_shapes={"x": {0: torch.export.Dim("b")}})
    assert torch.equal(exported.module()(bigger), Conv()(bigger))
    assert_same_bits(torch.jit.trace(Conv(), (x,))(bigger), Conv()(bigger))


WEIGHT = {"groups": 2, "b": randn(4, 2, 3, 3)}


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"groups": 3}, "prepare: a weight's Cout must be a multiple of groups = 3, got 4"),
        ({"groups": 0}, "prepare: groups must be at least 1, got 0"),
        ({"b": randn(4, 18)}, "prepare: groups must be 1 unless b is a convolution's weight"),
        ({"granularity": "per_head"}, "needs granularity 'per_row', got 'per_head'"),
        ({"smooth_scales": torch.ones(36)}, "smooth_scales must be None for a weight with groups"),
        ({"chunk_d": 9}, "prepare: chunk_d must be 0 for a weight with groups > 1, got 9"),
        ({"b": randn(4, 2, 0, 3)}, "a weight's kernel must have sizes of at least 1"),
    ],
)
def test_errors_of_preparing(knobs, message):
    with pytest.raises(ValueError, match=message):
        prepare(**{**WEIGHT, **knobs})


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"groups": 4}, "sc_conv2d: groups must be 2, for which the operand was prepared"),
        ({"mode": "unipolar"}, "sc_conv2d: mode must be 'bipolar', for which"),
        ({"smooth_scales": torch.ones(36)}, "sc_conv2d: smooth_scales must be None"),
        ({"x": randn(1, 3, 5, 5)}, "x with Cin = 3 and groups = 2, got .4, 2, 3, 3."),
        ({"x": randn(1, 4, 2, 5)}, "x with padding must be at least as large as the dilated"),
        ({"bias": randn(3)}, "bias must have shape .Cout,. = .4,."),
        ({"padding": "full"}, "padding must be 'same', 'valid', an int or a pair, got 'full'"),
        ({"stoc_len": torch.full((8,), 4)}, "row_stoc_len must have shape .B . Hout . Wout,."),
        ({"stoc_len": 257}, "stoc_len must be in .1, 256. for sc_prec=8, got 257"),
        ({"weight": prepare(randn(4, 36))}, "weight must have been prepared from a 4D weight"),
    ],
)
def test_errors_of_calling(knobs, message):
    call = {"x": randn(1, 4, 5, 5), "weight": prepare(**WEIGHT), **knobs}
    with pytest.raises(ValueError, match=message):
        sc_conv2d(**call)


def test_a_table_needs_one_group():
    table = {"rung_table": torch.zeros(9, 1, dtype=torch.int32), "level_lens": [64]}
    with pytest.raises(ValueError, match="rung_table does not apply to a prepared weight with"):
        sc_conv2d(randn(1, 4, 5, 5), prepare(**WEIGHT), **table)
