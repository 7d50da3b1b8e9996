"""NaN and Inf reach exactly the outputs of their quantization group; zeros keep their signs."""

import math

import pytest
import reference
import reference_quant
import torch
from support import assert_same_bits, randn

from scmp_kernels import quant, sc_matmul

BAD = [math.nan, math.inf, -math.inf]
bad_values = pytest.mark.parametrize("bad", BAD, ids=["nan", "inf", "-inf"])


def check(a, b, hit_a, hit_b, **knobs):
    """The outputs of rows hit_a of a and hit_b of b are NaN, the others those of clean inputs."""
    clean_a, clean_b = (x.nan_to_num(0.5, 0.5, 0.5) for x in (a, b))
    expected = sc_matmul(clean_a, clean_b, **knobs)
    assert not expected.isnan().any()
    expected[..., hit_a, :] = math.nan
    expected[..., hit_b] = math.nan
    out = sc_matmul(a, b, **knobs)
    assert_same_bits(out, expected)
    assert_same_bits(out, reference.sc_matmul(a, b, **knobs))


@bad_values
@pytest.mark.parametrize("mode", ["bipolar", "unipolar"])
def test_per_row(kernel, bad, mode):
    a, b = randn(7, 40), randn(6, 40, seed=1)
    a[2, 5], b[4, 39] = bad, bad
    check(a, b, [2], [4], mode=mode)
    check(a, b, [2], [4], mode=mode, stoc_len=50, rng_levels=100)


@bad_values
def test_groups(kernel, bad):
    a, b = randn(8, 40), randn(7, 40, seed=1)
    a[4, 5], b[6, 0] = bad, bad
    check(a, b, [3, 4, 5], [5, 6], group_a=3, group_b=5)


@bad_values
def test_chunks(kernel, bad):
    """The bad value sits in the second of three chunks: the output is NaN all the same."""
    a, b = randn(8, 40), randn(7, 40, seed=1)
    a[4, 20], b[6, 39] = bad, bad
    check(a, b, [4, 5], [6], group_a=2, chunk_d=16)


@bad_values
def test_per_head_and_batches(kernel, bad):
    a, b = randn(3, 5, 20), randn(3, 4, 20, seed=1)
    a[1, 2, 3] = bad
    whole = sc_matmul(a, b, "per_head")
    assert whole[1].isnan().all()
    for i in (0, 2):
        assert_same_bits(whole[i], sc_matmul(a[i : i + 1], b[i : i + 1], "per_head")[0])
    rows = sc_matmul(a, b, "per_row", group_a=2)
    assert rows.isnan().all(-1).nonzero().tolist() == [[1, 2], [1, 3]]


@bad_values
@pytest.mark.parametrize("mode", ["bipolar", "unipolar"])
def test_per_tensor(kernel, bad, mode):
    a, b = randn(3, 20), randn(4, 20, seed=1)
    b[3, 19] = bad
    assert sc_matmul(a, b, "per_tensor", mode=mode).isnan().all()


def test_the_smoothing_can_overflow_or_undo_an_overflow(kernel):
    a, b, scales = randn(4, 20), randn(3, 20, seed=1), torch.ones(20)
    scales[7] = 1e-30
    a[1, 7], a[0, 7], a[2, 7], a[3, 7] = 1e20, 0.0, 0.0, 0.0  # 1e20 / 1e-30 is Inf
    out = sc_matmul(a, b, smooth_scales=scales)
    assert out[1].isnan().all() and not out[[0, 2, 3]].isnan().any()
    assert_same_bits(out, reference.sc_matmul(a, b, smooth_scales=scales))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(kernel, dtype):
    a, b = randn(4, 20).to(dtype), randn(3, 20, seed=1).to(dtype)
    a[1, 7], b[2, 3] = math.inf, math.nan
    check(a, b, [1], [2])


def test_everything_nan(kernel):
    a = torch.full((5, 70), math.nan)
    for knobs in ({}, {"chunk_d": 16}, {"mode": "unipolar"}, {"granularity": "per_tensor"}):
        assert sc_matmul(a, a, **knobs).isnan().all()


# --- quantizers ----------------------------------------------------------------------------------


@bad_values
def test_a_given_range_loses_only_the_element(kernel, bad):
    x = torch.tensor([[1.0, bad, -1.0], [0.5, 0.25, bad]])
    boundary, sign, scale = quant.fused_quantize_bipolar(x, 1.0, 8)
    assert boundary.tolist() == [[256, 0, 256], [129, 65, 0]]
    assert sign.tolist() == [[1, 0, -1], [1, 1, 0]] and scale == 1 / 127
    boundary, scale, zero, row_sum = quant.fused_quantize_unipolar(x, 1.0, -1.0, 8, True)
    assert boundary.tolist() == [[256, 0, 0], [193, 161, 0]]
    assert row_sum.tolist() == [255.0, 352.0] and (scale, zero) == (2 / 255, 128.0)


@bad_values
def test_a_measured_range_loses_the_group(kernel, bad):
    x = torch.tensor([[1.0, bad, -1.0], [0.5, 0.25, 0.125], [-2.0, 0.0, 2.0]])
    boundary, sign, scale = quant.fused_quantize_bipolar_perrow(x, 8)
    assert boundary[0].tolist() == sign[0].tolist() == [0, 0, 0]
    assert scale.isnan().tolist() == [True, False, False]
    scale, q, sign = quant._grouped_symmetric_quant(x, 2, 127)
    assert scale.isnan().tolist() == [True, True, False]
    assert_same_bits(q[:2], torch.zeros(2, 3))
    assert (sign[:2] == 1).all()
    scale, zero, q = quant._grouped_asymmetric_quant(x, 2, 255)
    assert scale.isnan().tolist() == zero.isnan().tolist() == [True, True, False]
    assert_same_bits(q[:2], torch.zeros(2, 3))
    batched = quant._grouped_symmetric_quant_batched(x[None].repeat(2, 1, 1), 3, 127)
    assert batched[0].isnan().all()


def test_signs_of_zero(kernel):
    """Bipolar q keeps rint's sign of zero; unipolar q and zero point are never -0."""
    x = torch.tensor([[-0.0, 0.0, -0.001, 1.0], [0.0, -0.0, 0.0, -0.0]])
    _, q, sign = quant._grouped_symmetric_quant(x, 1, 127)
    assert q.signbit().tolist() == [[True, False, True, False], [False, True, False, True]]
    assert (sign == 1).all()
    _, zero, q = quant._grouped_asymmetric_quant(x, 1, 255)
    assert not zero.signbit().any() and not q.signbit().any()
    _, zero, q = quant._grouped_asymmetric_quant(x.abs(), 1, 255)
    assert not zero.signbit().any() and not q.signbit().any()
    for low in (0.0, -0.0, 1e-9):
        zero = quant.fused_quantize_unipolar(x, 1.0, low, 8)[2]
        assert type(zero) is float and math.copysign(1, zero) == 1
    assert (
        quant.fused_quantize_bipolar(-x, 1.0, 8)[1] == torch.tensor([[0, 0, 0, -1], [0] * 4])
    ).all()


def test_quantizers_of_nothing(kernel):
    for shape in ((0, 3), (3, 0), (0, 0)):
        x = torch.ones(shape)
        for actual, expected in (
            (
                quant.fused_quantize_bipolar_perrow(x, 8),
                reference_quant.fused_quantize_bipolar_perrow(x, 8),
            ),
            (quant._grouped_symmetric_quant(x, 2, 7), reference_quant.grouped_symmetric(x, 2, 7)),
            (quant._grouped_asymmetric_quant(x, 2, 7), reference_quant.grouped_asymmetric(x, 2, 7)),
        ):
            for output, value in zip(actual, expected, strict=True):
                assert_same_bits(output, value)
        assert quant.fused_quantize_bipolar(x, 1.0, 8)[0].shape == shape
        row_sum = quant.fused_quantize_unipolar(x, 1.0, 0.0, 8, True)[3]
        assert_same_bits(row_sum, torch.zeros(shape[0]))
