"""CUDA against the CPU, bit for bit, on every kernel; bad values that only the device knows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import calls, make_config, tensors
from support import assert_same_bits, assert_value_error, environment, on_cuda_kernel, randn

from scmp_kernels import _C, quant, sc_matmul

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

KERNELS = ["auto", *_C.cuda_kernels()]


def on_cuda(x):
    """`x` on the GPU with the same strides and storage offset."""
    storage = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return storage.cuda().as_strided(x.size(), x.stride(), x.storage_offset())


def to_cuda(knobs):
    return {name: v.cuda() if torch.is_tensor(v) else v for name, v in knobs.items()}


def check(a, b, knobs, env):
    with environment(env):
        expected = sc_matmul(a, b, **knobs)
        for kernel in KERNELS:
            actual = on_cuda_kernel(
                kernel, lambda: sc_matmul(on_cuda(a), on_cuda(b), **to_cuda(knobs))
            )
            if actual is None:
                continue
            assert actual.is_cuda
            assert_same_bits(actual.cpu(), expected, f"({kernel} kernel)")


@settings(max_examples=300)
@given(calls())
def test_any_call(call):
    check(*call)


@settings(max_examples=60)
@given(st.data())
def test_past_one_tile(data):
    n, m = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 300))
    depth = data.draw(st.one_of(st.integers(1, 300), st.sampled_from((128, 256, 1000, 4096))))
    a, b = data.draw(tensors((n, depth))), data.draw(tensors((m, depth)))
    knobs = {
        "halve_bipolar_stoc_len": True,
        "stoc_len": data.draw(st.sampled_from((None, 128, 127, 97, 64, 33, 16, 1))),
        "chunk_d": data.draw(st.sampled_from((0, 1, 16, 72, 128, 300))),
        "group_a": data.draw(st.sampled_from((1, 4))),
    }
    check(a, b, knobs, {})


# From 129 rows on, where a is the smaller operand, its bits are expanded instead of b's.
SMALLER_A = {
    "by rows": {"halve_bipolar_stoc_len": True},
    "a longer stream": {},
    "shorter streams than levels": {"stoc_len": 50, "rng_levels": 128},
    "short streams": {"sc_prec": 6},
    "chunks": {"chunk_d": 32, "halve_bipolar_stoc_len": True},
    "chunks of short streams": {"chunk_d": 40, "stoc_len": 64},
    "groups": {"group_a": 7, "group_b": 3},
    "a config": {"config": make_config(7, 90, 8), "stoc_len": 100},
}


@pytest.mark.parametrize("kind", SMALLER_A)
def test_a_smaller_than_b(kind):
    for n, m in ((129, 172), (200, 700), (300, 1001)):
        a, b = randn(n, 90), randn(m, 90, seed=1)
        a[3, 5], b[7, 0] = float("nan"), float("inf")
        check(a, b, SMALLER_A[kind], {})


def test_heads_of_a_smaller_than_those_of_b():
    a, b = randn(3, 140, 50), randn(3, 300, 50, seed=1)
    for granularity in ("per_head", "per_row"):
        check(a, b, {"granularity": granularity}, {})
    scales = torch.rand(50) + 0.5
    check(a.half(), b.bfloat16(), {"smooth_scales": scales}, {})


@pytest.mark.parametrize("sc_prec", range(2, 13))
@pytest.mark.parametrize("mode", ["bipolar", "unipolar"])
def test_every_precision_at_full_length(sc_prec, mode):
    a, b = randn(9, 40, seed=sc_prec), randn(13, 40, seed=sc_prec + 50)
    a[0], b[0] = a[0].sign(), b[0].sign()  # every code at the top
    check(a, b, {"sc_prec": sc_prec, "mode": mode}, {})


def test_any_number_of_masks():
    a, b = randn(9, 300), randn(13, 300, seed=1)
    for masks in (1, 2, 64, 256, 2**30):
        check(a, b, {"stoc_len": 100}, {"SC_SCRAMBLE_MASKS": str(masks)})


def test_rows_do_not_depend_on_the_batch():
    a, b = randn(300, 500).cuda(), randn(200, 500, seed=1).cuda()
    for chunk_d in (0, 128):
        whole = sc_matmul(a, b, chunk_d=chunk_d)
        for rows in (slice(0, 1), slice(17, 150), slice(299, 300)):
            assert torch.equal(sc_matmul(a[rows], b, chunk_d=chunk_d), whole[rows])
        assert torch.equal(sc_matmul(a, b, chunk_d=chunk_d), whole)


def test_nan_stays_in_its_group():
    a, b = randn(20, 64), randn(30, 64, seed=1)
    a[3, 5], b[7, 0], b[9, 1] = float("nan"), float("inf"), float("-inf")
    check(a, b, {}, {})
    check(a, b, {"chunk_d": 16}, {})
    check(a, b, {"granularity": "per_tensor"}, {})


@settings(max_examples=100)
@given(st.data())
def test_quantizers(data):
    rows, columns = data.draw(st.integers(0, 70)), data.draw(st.integers(1, 600))
    x = data.draw(tensors((rows, columns)))
    sc_prec, g = data.draw(st.integers(2, 12)), data.draw(st.sampled_from((1, 2, 7, 10**9)))
    levels = data.draw(st.sampled_from((None, 1, 2**sc_prec // 2)))
    qmax = data.draw(st.sampled_from((1, 127, 4095)))
    for run in (
        lambda x: quant.fused_quantize_bipolar(x, 2.5, sc_prec, levels),
        lambda x: quant.fused_quantize_bipolar_perrow(x, sc_prec, levels),
        lambda x: quant.fused_quantize_unipolar(x, 2.0, -1.5, sc_prec, True, levels),
        lambda x: quant._grouped_symmetric_quant(x, g, qmax),
        lambda x: quant._grouped_asymmetric_quant(x, g, qmax),
        lambda x: quant._grouped_symmetric_quant_batched(x[None], g, qmax),
    ):
        for actual, expected in zip(run(on_cuda(x)), run(x), strict=True):
            if torch.is_tensor(expected):
                assert_same_bits(actual.cpu(), expected)
            else:
                assert actual == expected


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_smooth_scales_give_nan_or_raise(bad, monkeypatch):
    a, b = randn(3, 8).cuda(), randn(5, 8, seed=1).cuda()
    scales = torch.ones(8).cuda()
    scales[2] = bad
    assert sc_matmul(a, b, smooth_scales=scales).isnan().all()
    monkeypatch.setenv("SCMP_SYNC_CHECKS", "1")
    with pytest.raises(ValueError, match="smooth_scales must be positive and finite"):
        sc_matmul(a, b, smooth_scales=scales)
    monkeypatch.setenv("SCMP_SYNC_CHECKS", "2")
    assert_value_error(
        lambda: sc_matmul(a, b), "sc_matmul: SCMP_SYNC_CHECKS must be 0 or 1, got '2'"
    )


def test_operands_on_different_devices():
    with pytest.raises(ValueError, match="device"):
        sc_matmul(randn(2, 3).cuda(), randn(2, 3))
    with pytest.raises(ValueError, match="device"):
        sc_matmul(randn(2, 3).cuda(), randn(2, 3).cuda(), smooth_scales=torch.ones(3))


def test_gradients():
    a = randn(4, 8).cuda().requires_grad_()
    b = randn(5, 8, seed=1).cuda().requires_grad_()
    g = randn(4, 5, seed=2).cuda()
    grads = torch.autograd.grad(sc_matmul(a, b), (a, b), g)
    assert torch.allclose(grads[0], g @ b) and torch.allclose(grads[1], g.T @ a)


def test_more_than_2_to_31_outputs():
    n, m, depth = 46400, 46400, 16
    a, b = torch.randn(n, depth, device="cuda"), torch.randn(m, depth, device="cuda")
    y = sc_matmul(a, b, stoc_len=32)
    rows = torch.tensor([0, 1, n // 2, n - 2, n - 1], device="cuda")
    assert torch.equal(y[rows].cpu(), sc_matmul(a[rows].cpu(), b.cpu(), stoc_len=32))


def test_more_than_2_to_31_inputs():
    n, depth = 2**17 + 3, 2**14 + 5
    a = torch.randn(n, depth, device="cuda", dtype=torch.float16)
    b = torch.randn(3, depth, device="cuda", dtype=torch.float16)
    y = sc_matmul(a, b, chunk_d=128, halve_bipolar_stoc_len=True)
    rows = torch.tensor([0, 77, n - 1], device="cuda")
    expected = sc_matmul(a[rows].cpu(), b.cpu(), chunk_d=128, halve_bipolar_stoc_len=True)
    assert torch.equal(y[rows].cpu(), expected)
