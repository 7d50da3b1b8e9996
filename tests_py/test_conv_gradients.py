"""Gradients of sc_conv2d: those of torch's conv2d, from a forward pass of one operator."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from support import assert_same_bits, randn
from torch.utils._python_dispatch import TorchDispatchMode

from scmp_kernels import prepare, sc_conv2d

OPS = torch.ops.scmp
GEOMETRIES = {
    "plain": ((4, 4, 3, 3), {}),
    "padded, strided": ((6, 4, 3, 2), {"padding": (2, 1), "stride": (2, 3)}),
    "dilated": ((3, 4, 3, 2), {"padding": 2, "dilation": (2, 3)}),
    "more on one side": ((3, 4, 2, 4), {"padding": "same"}),
    "pointwise": ((3, 4, 1, 1), {"stride": 2}),
    "groups": ((6, 2, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise": ((4, 1, 3, 3), {"padding": 1, "groups": 4}),
    "multiplier": ((8, 1, 2, 2), {"padding": "same", "groups": 4}),
}


class Called(TorchDispatchMode):
    """Records the operators that run while it is entered."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


def operands(shape, groups=1):
    return randn(2, 4, 7, 6).requires_grad_(), randn(*shape, seed=1).requires_grad_()


def exact(weight):
    """The nearest weight that `prepare` keeps: whole levels of its rows' largest value, 1."""
    levels = (weight / weight.abs().amax((1, 2, 3), keepdim=True) * 127).round()
    levels[:, 0, 0, 0] = 127
    return levels / 127


def assert_gradients(y, plain, inputs):
    g = randn(*y.shape, seed=3)
    mine = torch.autograd.grad(y, inputs, g)
    theirs = torch.autograd.grad(plain, inputs, g.to(plain.dtype))
    for actual, expected, operand in zip(mine, theirs, inputs, strict=True):
        assert actual.dtype == operand.dtype
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", GEOMETRIES)
def test_they_are_those_of_conv2d(name):
    shape, geometry = GEOMETRIES[name]
    x, weight = operands(shape)
    bias = randn(shape[0], seed=2).requires_grad_()
    y = sc_conv2d(x, weight, bias, **geometry)
    assert_same_bits(y.detach(), sc_conv2d(x.detach(), weight.detach(), bias.detach(), **geometry))
    assert_gradients(y, F.conv2d(x, weight, bias, **geometry), (x, weight, bias))


@pytest.mark.parametrize("name", GEOMETRIES)
def test_with_a_prepared_weight_they_are_of_its_values(name):
    shape, geometry = GEOMETRIES[name]
    x, weight = operands(shape)
    weight = exact(weight.detach())
    call = {k: v for k, v in geometry.items() if k != "groups"}
    ready = prepare(weight, groups=geometry.get("groups", 1))
    assert_gradients(sc_conv2d(x, ready, **call), F.conv2d(x, weight, **geometry), (x,))


@pytest.mark.parametrize("ready", [False, True])
def test_nothing_is_lowered_for_them(ready):
    x, weight = operands((4, 4, 3, 3))
    with Called() as forward:
        y = sc_conv2d(x, prepare(weight.detach()) if ready else weight, padding=1)
    wanted = OPS.conv2d_products.prepared if ready else OPS.conv2d_products.default
    assert wanted in forward.ops and y.requires_grad
    with Called() as backward:
        y.sum().backward()
    assert torch.ops.aten.convolution_backward.default in backward.ops
    lowering = {torch.ops.aten.im2col.default, torch.ops.aten.col2im.default}
    assert not lowering & {*forward.ops, *backward.ops}


@pytest.mark.parametrize("dtype_x", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype_weight", [torch.float16, torch.float32, torch.float64])
def test_each_has_its_operands_dtype(dtype_x, dtype_weight):
    x, weight = (t.detach() for t in operands((3, 4, 3, 3)))
    x, weight = x.to(dtype_x).requires_grad_(), weight.to(dtype_weight).requires_grad_()
    y = sc_conv2d(x, weight)
    g = randn(*y.shape, seed=3)
    mine = torch.autograd.grad(y, (x, weight), g.to(y.dtype))
    plain = F.conv2d(x.double(), weight.double())
    theirs = torch.autograd.grad(plain, (x, weight), g.double())
    for actual, expected, operand in zip(mine, theirs, (x, weight), strict=True):
        assert actual.dtype == operand.dtype
        torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.1)


def test_layouts_and_unbatched_input():
    x, weight = operands((3, 4, 3, 3))
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    assert_gradients(sc_conv2d(last, weight), F.conv2d(last, weight), (last, weight))
    assert_gradients(sc_conv2d(x[0], weight), F.conv2d(x[0], weight), (x, weight))


def test_smooth_scales_get_zeros():
    x, weight = operands((3, 4, 3, 3))
    scales = torch.linspace(0.5, 2, 36).requires_grad_()
    assert_gradients(sc_conv2d(x, weight, smooth_scales=scales), F.conv2d(x, weight), (x, weight))
    y = sc_conv2d(x.detach(), weight.detach(), smooth_scales=scales)
    assert torch.equal(torch.autograd.grad(y.sum(), scales)[0], torch.zeros(36))


@pytest.mark.parametrize(
    ("x", "weight"),
    [((0, 4, 5, 5), (3, 4, 3, 3)), ((2, 4, 5, 5), (0, 4, 3, 3)), ((2, 0, 5, 5), (3, 0, 3, 3))],
)
def test_of_nothing(x, weight):
    x, weight = torch.ones(x, requires_grad=True), torch.ones(weight, requires_grad=True)
    sc_conv2d(x, weight, padding=1).sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(weight.grad, torch.zeros_like(weight))


# --- lengths by row: only what was counted --------------------------------------------------------


def counted_product(x, weight, counted, geometry):
    """The exact products of the lowered rows where `counted`, (rows, columns), is true."""
    groups = geometry.get("groups", 1)
    unfold = {k: v for k, v in geometry.items() if k != "groups"}
    parts = []
    for images, kernels in zip(x.chunk(groups, 1), weight.chunk(groups), strict=True):
        rows = F.unfold(images, weight.shape[2:], **unfold).mT
        rows = torch.where(counted.view(len(x), -1, counted.shape[1]), rows, 0.0)
        parts.append(rows @ kernels.flatten(1).T)
    return torch.cat(parts, 2)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("ready", [False, True])
def test_positions_of_length_0(groups, ready):
    x, weight = operands((4, 4 // groups, 3, 2))
    weight = exact(weight.detach()).requires_grad_()
    geometry = {"padding": (1, 2), "stride": 2, "groups": groups}
    with torch.no_grad():
        x[0, :, 0, 0] = float("nan")  # in the window of the second position alone
    rows = 2 * 4 * 5
    lengths = torch.tensor([64, 0, 256, 0, 7]).repeat(rows // 5)
    call = {k: v for k, v in geometry.items() if k != "groups"} if ready else geometry
    b = prepare(weight.detach(), groups=groups) if ready else weight
    y = sc_conv2d(x, b, stoc_len=lengths, **call)
    expected = counted_product(x, weight, lengths[:, None] > 0, geometry)
    inputs = (x,) if ready else (x, weight)
    assert_gradients(y, expected.mT.unflatten(2, y.shape[2:]), inputs)


def test_chunks_of_length_0():
    x, weight = operands((3, 4, 3, 3))
    lengths = torch.tensor([[64, 0, 32], [0, 16, 0], [0, 0, 0]]).repeat(28, 1)
    counted = (lengths > 0).repeat_interleave(16, 1)[:, :36]
    levels, rungs = lengths.unique(return_inverse=True)
    for knobs in ({"stoc_len": lengths}, {"rung_table": rungs, "level_lens": levels.tolist()}):
        y = sc_conv2d(x, weight, padding=1, chunk_d=16, **knobs)
        plain = counted_product(x, weight, counted, {"padding": 1}).mT.unflatten(2, (7, 6))
        assert_gradients(y, plain, (x, weight))


# --- what is not there raises ---------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [None, torch.tensor(range(40))])
@pytest.mark.parametrize("ready", [False, True])
def test_double_backward_raises(ready, lengths):
    x, weight = operands((3, 4, 3, 3))
    b = prepare(weight.detach()) if ready else weight
    for wanted in (x,) if ready else (x, weight):
        y = sc_conv2d(x, b, stoc_len=lengths)
        (grad,) = torch.autograd.grad(y.square().sum(), wanted, create_graph=True)
        message = "^sc_conv2d: its straight-through gradient has no derivative; double backward"
        with pytest.raises(NotImplementedError, match=message):
            grad.sum().backward()


def test_forward_mode_raises():
    x, weight = (t.detach() for t in operands((3, 4, 3, 3)))
    scales, message = torch.ones(36), "^sc_conv2d: forward-mode differentiation is not supported$"
    with forward_ad.dual_level():

        def dual(t):
            return forward_ad.make_dual(t, t)

        for args, knobs in [
            ((dual(x), weight), {}),
            ((x, dual(weight)), {}),
            ((x, weight), {"smooth_scales": dual(scales)}),
            ((dual(x), prepare(weight)), {}),
        ]:
            with pytest.raises(NotImplementedError, match=message):
                sc_conv2d(*args, **knobs)


def test_a_prepared_weight_must_not_require_grad():
    ready = prepare(randn(3, 4, 3, 3))
    ready.scales.requires_grad_()
    with pytest.raises(ValueError, match="^sc_conv2d: a prepared b must not require grad; it has"):
        sc_conv2d(randn(2, 4, 5, 5), ready)


def test_an_operand_that_was_changed_in_place_is_noticed():
    x, weight = operands((3, 4, 3, 3))
    y = sc_conv2d(x, weight)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
