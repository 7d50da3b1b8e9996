"""Arguments at and past the end of what is allowed: what random calls once found."""

import pytest
import torch
from support import assert_same_bits, randn

from scmp_kernels import sc_conv2d, sc_matmul

OPS = torch.ops.scmp
X, WEIGHT = randn(1, 2, 5, 5), randn(3, 2, 3, 3, seed=1)


@pytest.mark.parametrize("levels", [1, 4098, 2**40])
def test_levels_of_groups_are_bounded(levels):
    with pytest.raises(ValueError, match=rf"levels must be in \[2, 4097\], got {levels}"):
        OPS.classify_groups_by_range(randn(6, 4), 2, 0.3, levels)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int8])
def test_lengths_of_any_integer_beside_a_gradient(dtype):
    a, b = randn(3, 8).requires_grad_(), randn(4, 8, seed=1)
    lengths = torch.tensor([0, 5, 100], dtype=dtype)
    y = sc_matmul(a, b, stoc_len=lengths)
    assert_same_bits(y.detach(), sc_matmul(a.detach(), b, stoc_len=lengths.long()))
    y.sum().backward()
    assert not a.grad[0].any() and a.grad[1:].any(-1).all()


@pytest.mark.parametrize("chunk_d", [2**40, 2**63 - 1])
def test_a_huge_chunk_is_one_chunk(chunk_d):
    a, b = randn(3, 8).requires_grad_(), randn(4, 8, seed=1)
    lengths = torch.tensor([[0], [5], [100]])
    y = sc_matmul(a, b, chunk_d=chunk_d, stoc_len=lengths)
    assert_same_bits(y.detach(), sc_matmul(a.detach(), b, chunk_d=8, stoc_len=lengths))
    y.sum().backward()
    assert not a.grad[0].any()


@pytest.mark.parametrize("name", ["stride", "padding", "dilation"])
@pytest.mark.parametrize("value", [2**30 + 1, 2**62, 2**63 - 1])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_geometry_is_bounded(name, value, device):
    with pytest.raises(ValueError, match=f"sc_conv2d: {name} must be at most 2"):
        sc_conv2d(X.to(device), WEIGHT.to(device), **{name: value})


@pytest.mark.parametrize("shape", [(1, 2, 5, 0), (1, 2, 0, 5), (0, 2, 5, 0)])
def test_images_without_a_side_are_their_padding(shape):
    y = sc_conv2d(torch.ones(shape), WEIGHT, padding=2)
    plain = torch.nn.functional.conv2d(torch.zeros(shape[0], 2, shape[2] + 4, shape[3] + 4), WEIGHT)
    assert y.shape == plain.shape and not y.any()


def test_meta_checks_thresholds_as_the_cpu():
    metric = torch.ones(4, device="meta")
    for call in ((None, [0.2, 0.5]), ([0.5, 0.1], None), (None, None), ([1.0], [0.5])):
        with pytest.raises(ValueError, match="adaptive_classify_rows: "):
            OPS.adaptive_classify_rows(metric, *call)


@pytest.mark.parametrize("knob", ["granularity", "mode"])
def test_texts_are_shown_short_and_on_one_line(knob):
    for text in ("a\nb", "x" * 100_000):
        with pytest.raises(ValueError) as caught:
            sc_matmul(randn(2, 4), randn(3, 4), **{knob: text})
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
