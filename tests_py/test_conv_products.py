"""The operator behind sc_conv2d, and what CUDA gathers from the input: the bits of the CPU."""

import pytest
import torch
from support import assert_same_bits, randn
from test_cuda_streams import capture
from torch.library import opcheck

from scmp_kernels import prepare, sc_conv2d
from scmp_kernels.sc.config_helpers import make_sobol_altseed_config

OPS = torch.ops.scmp
KNOBS = ("per_row", "bipolar", 8, None, 0, 1, 1, None, None, False, None, None, None, None)
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_opcheck(layout):
    x = randn(2, 4, 5, 6).to(memory_format=layout)
    weight = randn(3, 4, 3, 3, seed=1)
    geometry = ([2, 1], [1, 0, 1, 2], [1, 1], 1)
    opcheck(OPS.conv2d_products.default, (x, weight, *geometry, *KNOBS))
    ready = prepare(weight)
    args = (x, ready.tensors, ready.spec, *geometry[:3], 1, None, None, None, None)
    opcheck(OPS.conv2d_products.prepared, args)


def test_four_sides_of_padding():
    x, weight = randn(1, 4, 5, 5), randn(3, 4, 3, 3)
    y = OPS.conv2d_products(x, weight, [1, 1], [1, 2, 0, 3], [1, 1], 1, *KNOBS)
    padded = torch.nn.functional.pad(x, (0, 3, 1, 2))
    assert_same_bits(y, sc_conv2d(padded, weight))
    with pytest.raises(ValueError, match="padding must be at least 0, got .1, -1."):
        OPS.conv2d_products(x, weight, [1, 1], [1, -1, 0, 3], [1, 1], 1, *KNOBS)


CASES = {
    "patches": ((2, 3, 32, 32), (8, 3, 16, 16), {"stride": 16}, {}),
    "taps past 64, padded": ((1, 2, 13, 13), (5, 2, 9, 9), {"padding": 4}, {}),
    "one position": ((3, 70, 1, 1), (9, 70, 1, 1), {}, {"halve_bipolar_stoc_len": True}),
    "many columns": ((1, 1024, 5, 5), (3, 1024, 3, 3), {"padding": 1}, {}),
    "more than a table": ((1, 3000, 3, 3), (2, 3000, 3, 3), {}, {"stoc_len": 40}),
    "many channels": (
        (2, 70, 11, 9), (6, 70, 3, 2), {"padding": 1}, {"halve_bipolar_stoc_len": True},
    ),
    "many channels, dilated": (
        (1, 33, 17, 14), (5, 33, 3, 3), {"padding": 2, "dilation": 2, "stride": (2, 1)}, {},
    ),
    "more values than shared memory": ((1, 90, 6, 7), (4, 90, 3, 3), {"padding": 1}, {}),
    "chunks": ((2, 20, 9, 9), (6, 20, 3, 3), {"padding": 1}, {"chunk_d": 50}),
    "chunks halved": (
        (1, 20, 9, 9), (6, 20, 3, 3), {}, {"chunk_d": 64, "halve_bipolar_stoc_len": True},
    ),
    "images across blocks": (
        (3, 4, 13, 11), (140, 4, 3, 3), {"padding": 1}, {"halve_bipolar_stoc_len": True},
    ),
    "chunks of a large image": (
        (1, 4, 130, 131), (4, 4, 3, 3), {"padding": 1}, {"chunk_d": 20, "stoc_len": 128},
    ),
    "long streams": ((1, 5, 7, 7), (6, 5, 3, 3), {"padding": 1}, {"sc_prec": 11}),
    "short streams": ((1, 20, 9, 9), (6, 20, 3, 3), {}, {"stoc_len": 20, "rng_levels": 37}),
    "depthwise 7x7": ((2, 6, 15, 11), (6, 1, 7, 7), {"padding": 3, "groups": 6}, {}),
    "depthwise, more channels": (
        (2, 37, 15, 11), (37, 1, 3, 3), {"padding": 1, "groups": 37}, {},
    ),
    "depthwise, dilated": (
        (2, 6, 15, 11), (6, 1, 3, 3), {"padding": 2, "dilation": 2, "groups": 6}, {},
    ),
    "depthwise, strided": ((2, 6, 15, 11), (6, 1, 3, 3), {"stride": (2, 3), "groups": 6}, {}),
    "depthwise, long streams": (
        (1, 6, 9, 9), (6, 1, 3, 3), {"padding": 1, "groups": 6}, {"sc_prec": 12},
    ),
    "depthwise, finer": (
        (1, 6, 9, 9), (6, 1, 3, 3), {"padding": 1, "groups": 6}, {"sc_prec": 9, "stoc_len": 300},
    ),
    "depthwise, grouped rows": (
        (2, 6, 9, 9), (6, 1, 3, 3), {"padding": 1, "groups": 6}, {"group_a": 4},
    ),
    "depthwise, smoothed": (
        (2, 6, 9, 9), (6, 1, 3, 3), {"groups": 6}, {"smooth_scales": torch.linspace(0.5, 2, 54)},
    ),
    "multiplier": ((2, 6, 9, 9), (12, 1, 3, 3), {"padding": 1, "groups": 6}, {}),
    "groups by tensor": ((2, 6, 9, 9), (4, 3, 3, 3), {"groups": 2}, {"granularity": "per_tensor"}),
    "by tensor": ((2, 6, 9, 9), (4, 6, 3, 3), {"padding": 1}, {"granularity": "per_tensor"}),
    "unipolar": ((2, 6, 9, 9), (4, 6, 3, 3), {"padding": 1}, {"mode": "unipolar", "group_a": 3}),
    "config": (
        (2, 2, 9, 9), (4, 2, 2, 2), {}, {"config": make_sobol_altseed_config(8, 8, 8)},
    ),
}  # fmt: skip


def operands(case):
    x, weight, geometry, knobs = case
    return randn(*x), randn(*weight, seed=1), geometry, knobs


@pytest.mark.cuda
@on_cuda
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_cuda_has_the_bits_of_the_cpu(case, dtype):
    x, weight, geometry, knobs = operands(CASES[case])
    x = x.to(dtype)
    expected = sc_conv2d(x, weight, **geometry, **knobs)
    device = {k: v.cuda() if torch.is_tensor(v) else v for k, v in knobs.items()}
    for layout in (torch.contiguous_format, torch.channels_last):
        moved = x.cuda().contiguous(memory_format=layout)
        y = sc_conv2d(moved, weight.cuda(), **geometry, **device)
        assert_same_bits(y.cpu(), expected)
        if moved.is_contiguous() != moved.is_contiguous(memory_format=torch.channels_last):
            assert y.is_contiguous(memory_format=layout)


@pytest.mark.cuda
@on_cuda
def test_odd_strides():
    wide = randn(2, 8, 12, 14)
    weight = randn(5, 4, 3, 3, seed=1)
    views = {
        "cut": wide[:, 1:5, 2:9, 3:11],
        "steps": wide[:, ::2, ::2, ::3],
        "flipped axes": wide[:, :4].transpose(2, 3),
        "repeated": randn(1, 4, 1, 9).expand(2, 4, 6, 9),
    }
    for name, x in views.items():
        moved = x.cuda() if name == "repeated" else wide.cuda().as_strided(
            x.shape, x.stride(), x.storage_offset()
        )  # fmt: skip
        y = sc_conv2d(moved, weight.cuda(), padding=1)
        assert_same_bits(y.cpu(), sc_conv2d(x, weight, padding=1), name)


@pytest.mark.cuda
@on_cuda
@pytest.mark.parametrize("groups", [1, 8])
def test_nonfinite_inputs(groups):
    x, weight = randn(2, 8, 9, 9), randn(8, 8 // groups, 3, 3, seed=1)
    x[0, 3, 4, 4], x[1, 0, 0, 0], weight[2, 0, 1, 1] = float("nan"), float("inf"), float("nan")
    expected = sc_conv2d(x, weight, padding=1, groups=groups)
    y = sc_conv2d(x.cuda(), weight.cuda(), padding=1, groups=groups)
    assert_same_bits(y.cpu(), expected)


@pytest.mark.cuda
@on_cuda
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_damaged_codes_make_nan(groups):
    x, weight = randn(2, 6, 9, 9).cuda(), randn(6, 6 // groups, 3, 3, seed=1).cuda()
    ready = prepare(weight, groups=groups)
    whole = sc_conv2d(x, ready, padding=1)
    ready.codes.view(6, -1)[4, 2] = 30000
    y = sc_conv2d(x, ready, padding=1)
    assert y[:, 4].isnan().all()
    others = [0, 1, 2, 3, 5]
    assert_same_bits(y[:, others].cpu(), whole[:, others].cpu())


@pytest.mark.cuda
@on_cuda
@pytest.mark.parametrize(("out", "groups"), [(128, 1), (64, 64)])
@pytest.mark.parametrize("gradient", [False, True])
def test_memory_and_graphs(out, groups, gradient):
    x = torch.randn(8, 64, 56, 56, device="cuda")
    weight = torch.randn(out, 64 // groups, 3, 3, device="cuda", requires_grad=gradient)

    def call():
        return sc_conv2d(x, weight, padding=1, groups=groups)

    call()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = call()
    assert y.requires_grad == gradient
    extra = torch.cuda.max_memory_allocated() - before - y.nbytes
    codes = 2 * x.numel() * 9 if groups == 1 else 0
    assert extra - codes < 64 << 20
    del y
    graph, captured = capture(call)
    x.copy_(torch.randn(8, 64, 56, 56))
    graph.replay()
    assert torch.equal(captured, call())


@pytest.mark.cuda
@on_cuda
def test_gradients_and_compile():
    x, weight = randn(2, 4, 6, 6).cuda(), randn(4, 4, 3, 3, seed=1).cuda()
    with torch.no_grad():
        expected = sc_conv2d(x, weight, padding=1)
        compiled = torch.compile(lambda x: sc_conv2d(x, weight, padding=1), fullgraph=True)
        assert torch.equal(compiled(x), expected)
    x.requires_grad_()
    y = sc_conv2d(x, weight, padding=1)
    assert torch.equal(y, expected)
    g = randn(2, 4, 6, 6, seed=3).cuda()
    mine = torch.autograd.grad(y, x, g)[0]
    plain = torch.nn.functional.conv2d(x, weight, padding=1)
    torch.testing.assert_close(mine, torch.autograd.grad(plain, x, g)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.cuda
@on_cuda
def test_sync_checks(monkeypatch):
    x, weight = randn(1, 4, 5, 5).cuda(), randn(3, 4, 3, 3).cuda()
    scales = torch.full((36,), -1.0).cuda()
    assert sc_conv2d(x, weight, smooth_scales=scales).isnan().all()
    monkeypatch.setenv("SCMP_SYNC_CHECKS", "1")
    with pytest.raises(ValueError, match="smooth_scales"):
        sc_conv2d(x, weight, smooth_scales=scales)
