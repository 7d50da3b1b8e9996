"""Every operator under torch.vmap, autocast, inference mode and fake tensors.

What test_dispatch.py and test_compile.py have of sc_matmul and the quantizers is not repeated;
test_vmap.py has what is about torch.vmap alone.
"""

import pytest
import torch
from strategies import make_config
from support import DTYPES, assert_same_bits, randn
from torch._subclasses import FakeTensorMode

from scmp_kernels import conv2d_lowered_rows, mp, prepare, quant, sc_conv2d, sc_matmul
from scmp_kernels.sc.config import StreamConfig

OPS = torch.ops.scmp
CONFIG = StreamConfig(make_config(1, positions=16, prec=8))
A, B, SCALES = randn(5, 16), randn(6, 16, seed=1), torch.linspace(0.5, 2, 16)
X, WEIGHT, DEPTHWISE = randn(2, 3, 6, 5), randn(4, 3, 3, 3, seed=1), randn(3, 1, 3, 3, seed=2)
PREPARED, PREPARED_WEIGHT = prepare(B, chunk_d=5), prepare(WEIGHT)
METRIC = randn(9).abs()

# A tensor that may have a batch in front, and what is done with it.
CALLS = {
    "matmul": (A, lambda a: sc_matmul(a, B, config=CONFIG, stoc_len=99)),
    "matmul-b": (B, lambda b: sc_matmul(A, b, mode="unipolar")),
    "matmul-chunks": (A, lambda a: sc_matmul(a, B, chunk_d=5, group_a=2)),
    "matmul-tensor": (A, lambda a: sc_matmul(a, B, "per_tensor")),
    "matmul-scales": (SCALES, lambda s: sc_matmul(A, B, smooth_scales=s)),
    "matmul-lengths": (
        torch.tensor([0, 256, 64, 1, 7]),
        lambda lengths: sc_matmul(A, B, stoc_len=lengths),
    ),
    "matmul-3d": (A[None], lambda a: sc_matmul(a, B[None], "per_head")),
    "prepared": (A, lambda a: sc_matmul(a, PREPARED, stoc_len=64)),
    "conv2d": (X, lambda x: sc_conv2d(x, WEIGHT, padding=1, stoc_len=64)),
    "conv2d-same": (X, lambda x: sc_conv2d(x, WEIGHT, padding="same", dilation=2)),
    "conv2d-weight": (WEIGHT, lambda w: sc_conv2d(X, w, stride=2)),
    "conv2d-depthwise": (X, lambda x: sc_conv2d(x, DEPTHWISE, groups=3)),
    "conv2d-prepared": (X, lambda x: sc_conv2d(x, PREPARED_WEIGHT, stride=2)),
    "conv2d-prepared-same": (X, lambda x: sc_conv2d(x, PREPARED_WEIGHT, padding="same")),
    "lowered-rows": (X, lambda x: conv2d_lowered_rows(x, WEIGHT, padding=1)),
    "bipolar": (A, lambda x: quant.fused_quantize_bipolar(x, 2.0, 8)[:2]),
    "perrow": (A, lambda x: quant.fused_quantize_bipolar_perrow(x, 8, 100)),
    "unipolar": (A, lambda x: OPS.fused_quantize_unipolar(x, 2.0, -1.5, 8, True)),
    "symmetric": (A, lambda x: quant._grouped_symmetric_quant(x, 2, 127)),
    "batched": (A[None], lambda x: quant._grouped_symmetric_quant_batched(x, 2, 127)),
    "asymmetric": (A, lambda x: quant._grouped_asymmetric_quant(x, 2, 255)),
    "act-scales": (A, lambda x: quant.accumulate_act_scales(x)),
    "smooth-scales": (SCALES, lambda s: quant.compute_smooth_scales(s, B)),
    "smoothing": (A, lambda a: quant.apply_smoothing(a, B, SCALES)),
    "offline": (B, lambda b: quant.apply_smoothing_offline(b, SCALES)),
    "row-metric": (A, lambda x: mp.compute_row_metric(x, "crest")),
    "by-metric": (METRIC, lambda m: OPS.classify_rows_by_metric(m, [0.5, 0.3, 0.2])),
    "adaptive": (METRIC, lambda m: OPS.adaptive_classify_rows(m, None, [0.7, 0.2])),
    "by-range": (B, lambda w: OPS.classify_groups_by_range(w, 2, 0.3, 3)),
    "prepare": (B, lambda b: OPS.prepare(b, chunk_d=5, smooth_scales=SCALES)),
    "expand-prepared": (PREPARED.codes, lambda c: expanded(c)),
}
MATMULS = [name for name in CALLS if name.startswith(("matmul", "prepared"))]
every_call = pytest.mark.parametrize("name", CALLS)


def expanded(codes):
    return OPS.expand_prepared([codes, *PREPARED.tensors[1:]], PREPARED.spec)


def outputs(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def assert_same(actual, expected):
    for x, y in zip(outputs(actual), outputs(expected), strict=True):
        if isinstance(y, torch.Tensor):
            assert_same_bits(x, y)
        else:
            assert x == y


@pytest.mark.filterwarnings("error")
@every_call
def test_vmap_gives_the_bits_of_a_loop(name):
    """Without torch's warning of an operator that it has no batching rule for."""
    x, call = CALLS[name]
    batch = torch.stack([x, x.flip(0), x.roll(1, -1)])
    loop = [outputs(call(one)) for one in batch]
    expected = [torch.stack(parts) for parts in zip(*loop, strict=True)]
    assert_same(torch.vmap(call)(batch), expected)
    last = torch.vmap(call, in_dims=-1)(batch.movedim(0, -1).contiguous())
    assert_same(last, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_autocast_leaves_dtypes_to_the_operators(low, dtype):
    """Products are float32, convolutions of x's dtype, whatever autocast would choose."""
    for name in (*MATMULS, "conv2d", "conv2d-depthwise", "smoothing", "row-metric", "perrow"):
        x, call = CALLS[name]
        x = x.to(dtype) if x.is_floating_point() else x
        expected = call(x)
        with torch.autocast("cpu", dtype=low):
            out = call(x)
        assert_same([y.float() for y in outputs(out)], [y.float() for y in outputs(expected)])
        if name in MATMULS:
            assert out.dtype == torch.float32
        if name.startswith("conv2d"):
            assert out.dtype == x.dtype


def test_autocast_gradients_have_the_operands_dtypes():
    a, b = A.half().requires_grad_(), B.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sc_matmul(a, torch.nn.functional.relu(b))
    out.sum().backward()
    assert out.dtype == torch.float32
    assert a.grad.dtype == torch.float16 and b.grad.dtype == torch.float32


@every_call
def test_inference_mode_changes_nothing(name):
    x, call = CALLS[name]
    expected = call(x)
    with torch.inference_mode():
        assert_same(call(x), expected)
        inside = x.clone()
        out = call(inside)
        assert all(y.is_inference() for y in outputs(out) if isinstance(y, torch.Tensor))
        assert_same([y.clone() for y in outputs(out)], outputs(expected))


@every_call
def test_fake_tensors(name):
    """The shape, dtype, strides and device of the values, without a value."""
    x, call = CALLS[name]
    expected = outputs(call(x))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = outputs(call(mode.from_tensor(x)))
    for fake, real in zip(out, expected, strict=True):
        assert fake.shape == real.shape and fake.dtype == real.dtype and fake.device == real.device
        assert fake.stride() == real.stride()


def test_fake_prepare():
    """The buffers of a Prepared, without values."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = OPS.prepare(mode.from_tensor(B), chunk_d=5)
    for part, real in zip(fake, PREPARED.tensors, strict=True):
        assert part.shape == real.shape and part.dtype == real.dtype
