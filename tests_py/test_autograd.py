"""Straight-through gradients of sc_matmul, and no silently missing gradient anywhere."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from support import randn
from torch.utils.checkpoint import checkpoint

from scmp_kernels import quant, sc_matmul

KNOBS = [
    {},
    {"granularity": "per_tensor", "mode": "unipolar"},
    {"chunk_d": 5, "group_a": 2, "halve_bipolar_stoc_len": True},
    {"stoc_len": 3, "rng_levels": 100},
]


def operands(dtype_a=torch.float32, dtype_b=torch.float32, batch=()):
    a, b = randn(*batch, 5, 16), randn(*batch, 6, 16, seed=1)
    return a.to(dtype_a).requires_grad_(), b.to(dtype_b).requires_grad_()


@pytest.mark.parametrize("knobs", KNOBS)
def test_gradients_are_those_of_the_exact_product(knobs):
    a, b = operands()
    g = randn(5, 6, seed=2)
    sc_matmul(a, b, **knobs).backward(g)
    assert torch.equal(a.grad, g @ b) and torch.equal(b.grad, g.t() @ a)


@pytest.mark.parametrize("granularity", ["per_row", "per_head", "per_tensor"])
def test_batched(granularity):
    a, b = operands(batch=(3,))
    g = randn(3, 5, 6, seed=2)
    sc_matmul(a, b, granularity).backward(g)
    assert torch.equal(a.grad, g @ b) and torch.equal(b.grad, g.transpose(1, 2) @ a)


@pytest.mark.parametrize("dtype_a", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype_b", [torch.float16, torch.float32, torch.float64])
def test_each_gradient_has_its_operands_dtype(dtype_a, dtype_b):
    a, b = operands(dtype_a, dtype_b)
    out = sc_matmul(a, b)
    assert out.dtype == torch.float32
    g = randn(5, 6, seed=2)
    out.backward(g)
    assert a.grad.dtype == dtype_a and b.grad.dtype == dtype_b
    wide_a, wide_b = (a.detach().double(), b.detach().double())
    close = {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close(a.grad.double(), g.double() @ wide_b, **close)
    torch.testing.assert_close(b.grad.double(), g.t().double() @ wide_a, **close)


def test_half_is_multiplied_in_float32():
    a, b = operands(torch.float16, torch.float16)
    g = randn(5, 6, seed=2) * 100
    sc_matmul(a, b).backward(g)
    assert torch.equal(a.grad, (g @ b.float()).half())
    assert torch.equal(b.grad, (g.t() @ a.float()).half())


def test_only_what_is_asked_for():
    a, b = operands()
    out = sc_matmul(a, b.detach())
    out.sum().backward()
    assert a.grad is not None and b.grad is None
    out = sc_matmul(a.detach(), b)
    assert out.requires_grad
    (grad,) = torch.autograd.grad(out.sum(), b)
    assert torch.equal(grad, torch.ones(6, 5) @ a)
    assert not sc_matmul(a.detach(), b.detach()).requires_grad
    with torch.no_grad():
        assert not sc_matmul(a, b).requires_grad


def test_smooth_scales_get_zeros():
    a, b = operands()
    scales = torch.rand(16).add(0.5).requires_grad_()
    g = randn(5, 6, seed=2)
    sc_matmul(a, b, smooth_scales=scales).backward(g)
    assert torch.equal(scales.grad, torch.zeros(16))
    assert torch.equal(a.grad, g @ b) and torch.equal(b.grad, g.t() @ a)
    out = sc_matmul(a.detach(), b.detach(), smooth_scales=scales)
    assert out.requires_grad and torch.equal(
        torch.autograd.grad(out.sum(), scales)[0], torch.zeros(16)
    )


def test_views_and_expanded_operands():
    base = randn(16, 1, seed=3).requires_grad_()
    b = randn(6, 16, seed=1)
    sc_matmul(base.expand(16, 5).t(), b).sum().backward()
    assert torch.equal(base.grad, (torch.ones(5, 6) @ b).sum(0)[:, None])


def test_empty():
    a, b = torch.ones(0, 4, requires_grad=True), torch.ones(3, 4, requires_grad=True)
    sc_matmul(a, b).sum().backward()
    assert a.grad.shape == (0, 4) and torch.equal(b.grad, torch.zeros(3, 4))
    a, b = torch.ones(2, 0, requires_grad=True), torch.ones(3, 0, requires_grad=True)
    sc_matmul(a, b).sum().backward()
    assert a.grad.shape == (2, 0) and b.grad.shape == (3, 0)


def test_the_forward_bits_do_not_depend_on_gradients():
    a, b = operands()
    assert torch.equal(sc_matmul(a, b), sc_matmul(a.detach(), b.detach()))


def test_a_training_step_and_checkpointing():
    a, b = operands()
    sc_matmul(a, b).square().sum().backward()
    expected = a.grad.clone()
    a.grad = None
    checkpoint(lambda x: sc_matmul(x, b), a, use_reentrant=False).square().sum().backward()
    assert torch.equal(a.grad, expected)


def test_an_operand_that_was_changed_in_place_is_noticed():
    a, b = operands()
    out = sc_matmul(a, b)
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


# --- what is not there raises --------------------------------------------------------------------


def test_double_backward_raises():
    a, b = operands()
    message = "sc_matmul: its straight-through gradient has no derivative; double backward is not"
    for loss in (lambda out: out.square().sum(), lambda out: out.sum()):
        (grad,) = torch.autograd.grad(loss(sc_matmul(a, b)), a, create_graph=True)
        with pytest.raises(NotImplementedError, match=f"^{message}"):
            grad.sum().backward()


def test_forward_mode_raises():
    a, b = (x.detach() for x in operands())
    message = "^sc_matmul: forward-mode differentiation is not supported$"
    with forward_ad.dual_level():
        for args in ((forward_ad.make_dual(a, a), b), (a, forward_ad.make_dual(b, b))):
            with pytest.raises(NotImplementedError, match=message):
                sc_matmul(*args)
        scales = forward_ad.make_dual(torch.ones(16), torch.ones(16))
        with pytest.raises(NotImplementedError, match=message):
            sc_matmul(a, b, smooth_scales=scales)


def test_function_transforms_raise_rather_than_give_nothing():
    a, b = (x.detach() for x in operands())
    for transform in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(RuntimeError):
            transform(lambda x: sc_matmul(x, b).sum())(a)


FLOAT_OUTPUTS = {
    "perrow-scale": lambda x: quant.fused_quantize_bipolar_perrow(x, 8)[2],
    "unipolar-row-sum": lambda x: quant.fused_quantize_unipolar(x, 1.0, -1.0, 8, True)[3],
    "symmetric-scale": lambda x: quant._grouped_symmetric_quant(x, 2, 127)[0],
    "symmetric-q": lambda x: quant._grouped_symmetric_quant(x, 2, 127)[1],
    "batched-q": lambda x: quant._grouped_symmetric_quant_batched(x[None], 2, 127)[1],
    "asymmetric-scale": lambda x: quant._grouped_asymmetric_quant(x, 2, 255)[0],
    "asymmetric-zero": lambda x: quant._grouped_asymmetric_quant(x, 2, 255)[1],
    "asymmetric-q": lambda x: quant._grouped_asymmetric_quant(x, 2, 255)[2],
}


@pytest.mark.parametrize("name", FLOAT_OUTPUTS)
def test_quantizers_raise_on_backward(name):
    x = randn(4, 6).requires_grad_()
    output = FLOAT_OUTPUTS[name](x)
    assert output.requires_grad
    with pytest.raises(RuntimeError, match="derivative for scmp::.* is not implemented"):
        output.sum().backward()
    assert not FLOAT_OUTPUTS[name](x.detach()).requires_grad
    with torch.no_grad():
        assert not FLOAT_OUTPUTS[name](x).requires_grad


@pytest.mark.parametrize("name", FLOAT_OUTPUTS)
def test_quantizers_raise_in_forward_mode(name):
    x = randn(4, 6)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward AD"):
        FLOAT_OUTPUTS[name](forward_ad.make_dual(x, x))


def test_integer_outputs_need_no_gradient():
    x = randn(4, 6).requires_grad_()
    outputs = (
        *quant.fused_quantize_bipolar(x, 1.0, 8)[:2],
        *quant.fused_quantize_bipolar_perrow(x, 8)[:2],
        quant.fused_quantize_unipolar(x, 1.0, -1.0, 8)[0],
        quant._grouped_symmetric_quant(x, 2, 127)[2],
    )
    assert not any(output.requires_grad for output in outputs)
