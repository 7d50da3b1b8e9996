"""Prepared operands in autograd, torch.compile and torch.export."""

import io

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from prepared_cases import (
    BATCHED,
    HALVED,
    KINDS,
    PLAIN_CONFIG,
    Layer,
    dequantized,
    kinds,
    pair,
    split,
)
from support import (
    DTYPES,
    assert_same_bits,
    environment,
    randn,
)
from torch.export import Dim

from scmp_kernels import prepare, sc_matmul
from scmp_kernels.sc.config import StreamConfig

# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("expand", [False, True])
@kinds
def test_the_gradient_is_that_of_the_dequantized_b(kind, expand):
    a, b = pair()
    prepared, g = prepare(b, **KINDS[kind], expand=expand), randn(5, 6, seed=2)
    a.requires_grad_()
    out = sc_matmul(a, prepared)
    assert_same_bits(out.detach(), sc_matmul(a.detach(), b, **KINDS[kind]))
    (grad,) = torch.autograd.grad(out, a, g)
    expected = (g.double() @ dequantized(b, **KINDS[kind])).float()
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("levels", [1, 7, 100, 256])
def test_the_gradient_on_a_coarse_grid(levels):
    a, b = pair()
    for mode in ("bipolar", "unipolar"):
        knobs = {"mode": mode, "rng_levels": levels}
        sc_matmul(a.requires_grad_(), prepare(b, **knobs)).sum().backward()
        expected = torch.ones(5, 6).double() @ dequantized(b, **knobs)
        torch.testing.assert_close(a.grad, expected.float(), rtol=1e-4, atol=1e-5)
        a.grad = None


@pytest.mark.parametrize("name", BATCHED)
def test_the_gradient_of_a_batch(name):
    knobs, free = split(BATCHED[name])
    a, b = pair(batch=(3,))
    g = randn(3, 5, 6, seed=2)
    sc_matmul(a.requires_grad_(), prepare(b, **knobs), **free).backward(g)
    expected = (g.double() @ dequantized(b, **knobs)).float()
    torch.testing.assert_close(a.grad, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_gradient_has_the_dtype_of_a(dtype):
    a, b = pair()
    g = randn(5, 6, seed=2) * 100
    a = a.to(dtype).requires_grad_()
    sc_matmul(a, prepare(b)).backward(g)
    assert a.grad.dtype == dtype
    expected = (g.double() @ dequantized(b)).to(dtype)
    torch.testing.assert_close(a.grad, expected, rtol=1e-2, atol=1e-2)


def test_empty_gradients():
    for n, m, depth in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        a = torch.ones(n, depth, requires_grad=True)
        sc_matmul(a, prepare(torch.ones(m, depth))).sum().backward()
        assert a.grad.shape == (n, depth) and (m > 0 or not a.grad.any())


def test_no_gradient_where_none_is_asked_for():
    a, b = pair()
    prepared = prepare(b)
    assert not sc_matmul(a, prepared).requires_grad
    with torch.no_grad():
        assert not sc_matmul(a.requires_grad_(), prepared).requires_grad


def test_double_backward_and_forward_mode_raise():
    a, b = pair()
    prepared = prepare(b)
    x = a.clone().requires_grad_()
    (grad,) = torch.autograd.grad(sc_matmul(x, prepared).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="^sc_matmul: its straight-through gradient"):
        grad.sum().backward()
    with forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match="^sc_matmul: forward-mode"):
            sc_matmul(forward_ad.make_dual(a, a), prepared)


# --- compiled and exported ------------------------------------------------------------------------

SIZES = (5, 7, 33, 64, 2)


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh")
@kinds
def test_one_dynamic_graph(kind):
    prepared = prepare(randn(6, 16, seed=1), **KINDS[kind])

    def function(a):
        return sc_matmul(a * 2, prepared, stoc_len=50) + 1

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in SIZES:
            a = randn(n, 16)
            assert_same_bits(compiled(a), function(a))


@pytest.mark.usefixtures("fresh")
def test_a_marked_size_in_a_model():
    layer = Layer(randn(6, 16, seed=1), **HALVED)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in SIZES:
            a = randn(n, 16)
            torch._dynamo.mark_dynamic(a, 0)
            assert_same_bits(compiled(a).detach(), layer(a).detach())


@pytest.mark.usefixtures("fresh")
def test_gradients_in_one_dynamic_graph():
    prepared = prepare(randn(6, 16, seed=1), smooth_scales=torch.linspace(0.5, 2, 16))

    def function(a):
        return sc_matmul(a * 2, prepared).square()

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in SIZES:
            a = randn(n, 16).requires_grad_()
            (expected,) = torch.autograd.grad(function(a).sum(), a)
            assert_same_bits(torch.autograd.grad(compiled(a).sum(), a)[0], expected)


@pytest.mark.usefixtures("fresh")
def test_a_graph_is_never_stale():
    """Another Prepared, another state or another environment may recompile; none is frozen."""
    a, b = pair()
    layer = Layer(b)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(a).detach(), sc_matmul(a, b, stoc_len=50))
    layer.weight.load_state_dict(prepare(-b, rng_levels=100).state_dict())
    expected = sc_matmul(a, -b, rng_levels=100, stoc_len=50)
    assert_same_bits(compiled(a).detach(), expected)
    layer.weight = prepare(b, "per_tensor")
    expected = sc_matmul(a, b, "per_tensor", stoc_len=50)
    assert_same_bits(compiled(a).detach(), expected)
    with environment({"SC_OWEN_MODE": "random"}):
        with pytest.raises(Exception, match="sc_matmul: .*SC_"):
            compiled(a)
    assert_same_bits(compiled(a).detach(), expected)


@pytest.mark.usefixtures("fresh")
def test_a_prepared_as_an_argument():
    a, b = pair()
    compiled = torch.compile(lambda a, b: sc_matmul(a, b), fullgraph=True, backend="aot_eager")
    for other in (b, b * 2 + 1):
        assert_same_bits(compiled(a, prepare(other)), sc_matmul(a, other))


@pytest.mark.usefixtures("fresh")
def test_prepare_inside_a_graph_is_a_clear_error():
    compiled = torch.compile(
        lambda a, b: sc_matmul(a, prepare(b)), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match=r"prepare: "):
        compiled(*pair())


@pytest.mark.usefixtures("fresh")
def test_an_error_keeps_its_text():
    prepared = prepare(torch.ones(6, 16))
    compiled = torch.compile(lambda a: sc_matmul(a, prepared, stoc_len=999), backend="eager")
    with pytest.raises(Exception, match="stoc_len must be in .1, 256. for sc_prec=8, got 999"):
        compiled(torch.ones(5, 16))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("strict", [False, True])
def test_export_with_any_n(strict):
    layer = Layer(randn(6, 16, seed=1), config=StreamConfig(PLAIN_CONFIG))
    exported = torch.export.export(
        layer, (randn(5, 16),), dynamic_shapes=({0: Dim("n")},), strict=strict
    )
    assert "sha256:" not in str(exported.graph)
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    buffer.seek(0)
    for program in (exported, torch.export.load(buffer)):
        for n in (*SIZES, 1):
            a = randn(n, 16)
            assert_same_bits(program.module()(a).detach(), layer(a).detach())
