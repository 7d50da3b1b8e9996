"""SmoothQuant's four operators: values, dtypes, gradients, errors, graphs."""

import pytest
import torch
from support import assert_value_error, randn

from scmp_kernels import quant, sc_matmul

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7)])
def test_accumulate(dtype, shape):
    batches = [randn(*shape, seed=i).to(dtype) for i in range(3)]
    running = None
    for batch in batches:
        running = quant.accumulate_act_scales(batch, running)
    expected = torch.cat([batch.reshape(-1, 7) for batch in batches]).abs().amax(0)
    assert running.dtype == dtype and torch.equal(running, expected)


def test_nothing_seen_is_zero():
    assert torch.equal(quant.accumulate_act_scales(torch.empty(0, 3)), torch.zeros(3))
    running = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(quant.accumulate_act_scales(torch.empty(2, 0, 3), running), running)


def test_nan_is_not_forgotten():
    x = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
    seen = quant.accumulate_act_scales(x)
    assert seen[0] == 2 and seen[1].isnan()
    assert quant.accumulate_act_scales(torch.ones(1, 2), seen)[1].isnan()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_compute(alpha, dtype):
    act, weight = randn(6).abs().to(dtype), randn(4, 6, seed=1).to(dtype)
    act[2] = 0  # a dead channel
    weight[:, 3] = 0
    a = act.double().clamp(min=1e-5)
    w = weight.abs().amax(0).double().clamp(min=1e-5)
    expected = (a**alpha / w ** (1 - alpha)).clamp(min=1e-5).float()
    out = quant.compute_smooth_scales(act, weight, alpha)
    assert out.dtype == torch.float32
    assert torch.equal(out, expected)


def test_compute_without_rows():
    out = quant.compute_smooth_scales(torch.ones(2), torch.empty(0, 2))
    assert torch.equal(out, torch.full((2,), 1e-5**-0.5, dtype=torch.float64).float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_apply(dtype):
    a, b, s = randn(2, 5, 6).to(dtype), randn(4, 6, seed=1).to(dtype), randn(6, seed=2).exp()
    smooth_a, smooth_b = quant.apply_smoothing(a, b, s)
    assert smooth_a.dtype == smooth_b.dtype == dtype
    assert torch.equal(smooth_a, a / s.to(dtype)) and torch.equal(smooth_b, b * s.to(dtype))
    assert torch.equal(quant.apply_smoothing_offline(b, s), smooth_b)


def test_the_scales_feed_sc_matmul():
    a, b = randn(5, 16), randn(6, 16, seed=1)
    s = quant.compute_smooth_scales(quant.accumulate_act_scales(a), b)
    smooth_a, smooth_b = quant.apply_smoothing(a, b, s)
    assert torch.equal(sc_matmul(a, b, smooth_scales=s), sc_matmul(smooth_a, smooth_b))


def test_gradients():
    a, b, s = (randn(3, 4).double().requires_grad_() for _ in range(2)), None, None
    a, b = a
    s = randn(4, seed=2).exp().double().requires_grad_()
    assert torch.autograd.gradcheck(quant.apply_smoothing, (a, b, s))
    assert torch.autograd.gradcheck(quant.apply_smoothing_offline, (b, s))


def test_gradients_of_no_channels_and_twice():
    a, b, s = (torch.ones(n, 0, requires_grad=True) for n in (2, 3, 1))
    s = s[0]
    smooth_a, smooth_b = quant.apply_smoothing(a, b, s)
    (smooth_a.sum() + smooth_b.sum()).backward()
    assert a.grad.shape == (2, 0)
    a, b, s = (randn(*shape).double().requires_grad_() for shape in ((3, 4), (2, 4), (4,)))
    assert torch.autograd.gradgradcheck(
        lambda a, b, s: quant.apply_smoothing(a, b, s.exp()), (a, b, s)
    )


def test_an_output_depends_on_its_own_operand():
    """And on the scales: as the arithmetic that it is."""
    a, s = torch.ones(2, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    b = torch.tensor([[float("inf"), 1.0, 1.0]])
    quant.apply_smoothing(a, b, s)[0].sum().backward()
    assert torch.equal(s.grad, torch.full((3,), -2.0))
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(1, 3, requires_grad=True)
    quant.apply_smoothing(a, b, torch.zeros(3))[1].sum().backward()
    assert a.grad is None and torch.equal(b.grad, torch.zeros(1, 3))
    a, b = torch.full((2, 3), float("inf")), torch.ones(1, 3)
    s = torch.ones(3, requires_grad=True)
    quant.apply_smoothing(a, b, s)[1].sum().backward()
    assert torch.equal(s.grad, torch.ones(3))


def test_only_the_gradient_of_the_scales_needs_the_operands():
    x, b, s = torch.ones(2, 3, requires_grad=True), torch.ones(1, 3), torch.full((3,), 2.0)
    a = x * 2
    smooth_a, smooth_b = quant.apply_smoothing(a, b, s)
    assert smooth_a.requires_grad and not smooth_b.requires_grad
    a.add_(1)  # in place, before the backward pass
    smooth_a.sum().backward()
    assert torch.equal(x.grad, torch.ones(2, 3))
    smooth_a, smooth_b = quant.apply_smoothing(torch.ones(2, 3), b.requires_grad_(), s)
    assert smooth_b.requires_grad and not smooth_a.requires_grad


def test_compilers_see_one_operator():
    """Theirs would divide by other rules: an ulp more or less, and another code."""

    class Smoothed(torch.nn.Module):
        def forward(self, a, b, s):
            return quant.apply_smoothing(a, b, s)

    args = (randn(3, 4), randn(2, 4), randn(4).exp())
    graph = torch.export.export(Smoothed(), args).run_decompositions().graph
    targets = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert "scmp.apply_smoothing.default" in targets
    assert not any("div" in target for target in targets)


def test_errors():
    x, w, s = torch.ones(2, 3), torch.ones(4, 3), torch.ones(3)
    for run, text in [
        (
            lambda: quant.accumulate_act_scales(torch.tensor(1.0)),
            "accumulate_act_scales: x must have shape (..., D), got a scalar",
        ),
        (
            lambda: quant.accumulate_act_scales(x.int()),
            "accumulate_act_scales: x must be float16, bfloat16, float32 or float64, got Int",
        ),
        (
            lambda: quant.accumulate_act_scales(x, torch.ones(2)),
            "accumulate_act_scales: running must have shape (D,) = (3,), got [2]",
        ),
        (
            lambda: quant.accumulate_act_scales(x, s.double()),
            "accumulate_act_scales: running must be Float as x, got Double",
        ),
        (
            lambda: quant.compute_smooth_scales(s, w, 1.5),
            "compute_smooth_scales: alpha must be in [0, 1], got 1.5",
        ),
        (
            lambda: quant.compute_smooth_scales(s, w, float("nan")),
            "compute_smooth_scales: alpha must be in [0, 1], got nan",
        ),
        (
            lambda: quant.compute_smooth_scales(s, w, 0.5, 0.0),
            "compute_smooth_scales: eps must be positive and finite, got 0",
        ),
        (
            lambda: quant.compute_smooth_scales(torch.ones(2), w),
            "compute_smooth_scales: act must have shape (D,) = (3,), got [2]",
        ),
        (
            lambda: quant.compute_smooth_scales(s, s),
            "compute_smooth_scales: weight must be 2D, got 1D of shape [3]",
        ),
        (
            lambda: quant.apply_smoothing(x, torch.ones(4, 2), s),
            "apply_smoothing: s must have shape (D,) = (2,), got [3]",
        ),
        (
            lambda: quant.apply_smoothing_offline(w, torch.ones(3, device="meta")),
            "apply_smoothing_offline: s must be on weight's device cpu, got meta",
        ),
    ]:
        assert_value_error(run, text)


def arguments():
    x, w, s = randn(5, 3), randn(4, 3, seed=1), torch.tensor([1.0, 2.0, 3.0])
    ops = torch.ops.scmp
    yield ops.accumulate_act_scales, (x, s)
    yield ops.compute_smooth_scales, (s, w)
    yield ops.apply_smoothing, (x, w, s)
    yield ops.apply_smoothing_offline, (w, s)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(("op", "args"), list(arguments()))
def test_on_cuda(op, args):
    out, expected = op(*(x.cuda() for x in args)), op(*args)
    torch.testing.assert_close(
        [x.cpu() for x in out] if isinstance(out, tuple) else out.cpu(),
        list(expected) if isinstance(expected, tuple) else expected,
        rtol=2e-7,
        atol=0,
    )
