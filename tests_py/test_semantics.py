"""What holds for every call: independence, repeatability, empty and extreme inputs."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import reference
import torch
from support import KERNELS, assert_same_bits, forced, randn, threads

from scmp_kernels import _C, sc_matmul
from scmp_kernels.sc import det_kernel_tuning

F = np.float32
KNOBS = {
    "row": {},
    "row-halved": {"halve_bipolar_stoc_len": True},
    "row-unipolar": {"mode": "unipolar", "stoc_len": 100},
    "groups": {"group_a": 3, "group_b": 2, "stoc_len": 77},
    "chunks": {"chunk_d": 16, "halve_bipolar_stoc_len": True},
    "chunk-groups": {"chunk_d": 16, "group_a": 4, "group_b": 3},
    "tensor": {"granularity": "per_tensor"},
    "tensor-unipolar": {"granularity": "per_tensor", "mode": "unipolar"},
    "prec12": {"sc_prec": 12, "stoc_len": 1000},
}
every_knob = pytest.mark.parametrize("knobs", KNOBS.values(), ids=KNOBS)


# --- independence --------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 3, 4, 50])
@pytest.mark.parametrize("more", [{}, {"mode": "unipolar"}, {"chunk_d": 16}, {"stoc_len": 50}])
def test_a_row_depends_on_its_group_and_on_b_alone(kernel, group, more):
    a, b = randn(23, 40), randn(17, 40, seed=1)
    whole = sc_matmul(a, b, group_a=group, group_b=group, **more)
    for n in range(0, 23, group):
        own = sc_matmul(a[n : n + group], b, group_a=group, group_b=group, **more)
        assert_same_bits(whole[n : n + group], own)
    for m in range(0, 17, group):
        own = sc_matmul(a, b[m : m + group], group_a=group, group_b=group, **more)
        assert_same_bits(whole[:, m : m + group], own)


@pytest.mark.parametrize(
    "knobs",
    [
        {"granularity": "per_head"},
        {"group_a": 4, "group_b": 5},
        {"mode": "unipolar", "group_a": 4},
    ],
)
def test_a_batch_entry_depends_on_itself_alone(kernel, knobs):
    a, b = randn(4, 9, 21), randn(4, 7, 21, seed=1)
    whole = sc_matmul(a, b, **knobs)
    for i in range(4):
        assert_same_bits(whole[i : i + 1], sc_matmul(a[i : i + 1], b[i : i + 1], **knobs))
        if "granularity" not in knobs:
            assert_same_bits(whole[i], sc_matmul(a[i], b[i], **knobs))


@every_knob
def test_repeats_bit_for_bit_on_any_number_of_threads(kernel, knobs):
    n = 30 if kernel == "reference" else 130
    a, b = randn(n, 70), randn(65, 70, seed=1)
    expected = sc_matmul(a, b, **knobs)
    for count in (1, 2, 7):
        with threads(count):
            for _ in range(2):
                assert_same_bits(sc_matmul(a, b, **knobs), expected)


@every_knob
def test_det_kernel_tuning_keeps_the_bits(kernel, knobs):
    a, b = randn(33, 70), randn(65, 70, seed=1)
    expected = sc_matmul(a, b, **knobs)
    with det_kernel_tuning():
        assert_same_bits(sc_matmul(a, b, **knobs), expected)
        with det_kernel_tuning():
            assert_same_bits(sc_matmul(a, b, **knobs), expected)
        assert_same_bits(sc_matmul(a, b, **knobs), expected)


def test_det_kernel_tuning_nests_and_ends_after_an_exception():
    with pytest.raises(KeyError), det_kernel_tuning(), det_kernel_tuning():
        raise KeyError
    outside = "^leave_det_tuning: this thread is not in a tuning scope"
    with pytest.raises(ValueError, match=outside):
        _C.leave_det_tuning()
    with det_kernel_tuning(), ThreadPoolExecutor(1) as other_thread:
        with pytest.raises(ValueError, match=outside):
            other_thread.submit(_C.leave_det_tuning).result()


@every_knob
def test_inputs_are_not_modified(kernel, knobs):
    a, b, scales = randn(5, 40), randn(6, 40, seed=1), randn(40, seed=2).exp()
    before = [x.clone() for x in (a, b, scales)]
    sc_matmul(a, b, smooth_scales=scales, **knobs)
    assert all(torch.equal(x, y) for x, y in zip((a, b, scales), before, strict=True))


def test_the_result_is_no_view_of_an_input_nor_of_a_former_result():
    a, b = randn(5, 5), randn(5, 5, seed=1)
    first, second = sc_matmul(a, b), sc_matmul(a, b)
    pointers = {x.untyped_storage().data_ptr() for x in (a, b, first, second)}
    assert len(pointers) == 4 and first.is_contiguous() and not first.requires_grad


# --- shapes and strides --------------------------------------------------------------------------


@every_knob
@pytest.mark.parametrize(("n", "m", "depth"), [(0, 3, 40), (3, 0, 40), (0, 0, 0), (2, 3, 0)])
def test_empty(kernel, knobs, n, m, depth):
    out = sc_matmul(torch.ones(n, depth), torch.ones(m, depth), **knobs)
    assert_same_bits(out, np.zeros((n, m), np.float32))


@pytest.mark.parametrize("granularity", ["per_row", "per_head", "per_tensor"])
@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)])
def test_empty_batched(kernel, granularity, shape):
    batch, n, m, depth = shape
    out = sc_matmul(torch.ones(batch, n, depth), torch.ones(batch, m, depth), granularity)
    assert_same_bits(out, np.zeros((batch, n, m), np.float32))


def test_empty_d_with_a_config_and_scales():
    config = {"rng_pool": [], "sng": {"q": [], "k": []}}
    out = sc_matmul(torch.ones(2, 0), torch.ones(3, 0), config=config, smooth_scales=torch.ones(0))
    assert_same_bits(out, np.zeros((2, 3), np.float32))


VIEWS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "storage-offset-1": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "every-second": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "negated-view": lambda x: torch.complex(torch.zeros_like(x), -x).conj().imag,
}


@every_knob
@pytest.mark.parametrize("view", VIEWS)
def test_views(kernel, knobs, view):
    a, b = randn(9, 40), randn(11, 40, seed=1)
    viewed = [VIEWS[view](x) for x in (a, b)]
    assert all(torch.equal(x, y) for x, y in zip(viewed, (a, b), strict=True))
    assert_same_bits(sc_matmul(*viewed, **knobs), sc_matmul(a, b, **knobs))


@every_knob
def test_expanded_and_overlapping_inputs(kernel, knobs):
    rows, columns = randn(1, 40).expand(6, 40), randn(5, 1, seed=1).expand(5, 40)
    windows = randn(50, seed=2).unfold(0, 40, 2)
    for a in (rows, windows):
        for b in (columns, windows):
            expected = sc_matmul(a.contiguous(), b.contiguous(), **knobs)
            assert_same_bits(sc_matmul(a, b, **knobs), expected)


@pytest.mark.parametrize("depth", [1, 15, 16])
def test_one_chunk_is_the_plain_path(kernel, depth):
    a, b = randn(5, depth), randn(6, depth, seed=1)
    for knobs in ({}, {"group_a": 2, "stoc_len": 30}):
        expected = sc_matmul(a, b, **knobs)
        for chunk in (16, 17, 2**40):
            assert_same_bits(sc_matmul(a, b, chunk_d=chunk, **knobs), expected)


def test_groups_and_chunks_of_any_size(kernel):
    a, b = randn(5, 16), randn(6, 16, seed=1)
    for chunk in (0, 7):
        expected = sc_matmul(a, b, group_a=5, group_b=6, chunk_d=chunk)
        for group in (6, 2**31, 2**63 - 1):
            out = sc_matmul(a, b, group_a=group, group_b=group, chunk_d=chunk)
            assert_same_bits(out, expected)
    assert_same_bits(sc_matmul(a, b, chunk_d=2**63 - 1), sc_matmul(a, b))


@pytest.mark.parametrize("depth", [129, 1000, 2049])
@pytest.mark.parametrize("chunk", [3, 72, 128, 1000])
def test_many_chunks_with_a_ragged_tail(kernel, depth, chunk):
    a, b = randn(4, depth), randn(5, depth, seed=1)
    knobs = {"chunk_d": chunk, "halve_bipolar_stoc_len": True, "stoc_len": 100}
    assert_same_bits(sc_matmul(a, b, **knobs), reference.sc_matmul(a, b, **knobs))


@pytest.mark.parametrize("kernel", [name for name in KERNELS if name != "reference"])
def test_sums_beyond_32_bits(kernel):
    """S = D * L and the sums of levels: every code at its highest, 2**31 and more."""
    depth, length, qmax = 530_000, 4096, 4095
    ones = torch.ones(1, depth)
    with forced(kernel):
        out = sc_matmul(ones, ones, mode="unipolar", sc_prec=12)
    c = F(qmax**2) * (F(1) / F(length))
    scale = F(1e-5) * (F(1) / F(qmax))
    assert depth * length > 2**31 and depth * qmax > 2**31
    assert out.item() == F(depth * length) * c * (scale * scale)


def test_negative_sums_beyond_32_bits():
    depth, length, qmax = 530_000, 4096, 2047
    out = sc_matmul(torch.ones(1, depth), -torch.ones(1, depth), sc_prec=12)
    r = F(1) / F(qmax)
    assert out.item() == F(-depth * length) * (F(qmax**2) * (F(1) / F(length))) * (r * r)


# --- values --------------------------------------------------------------------------------------


@every_knob
def test_rows_of_zeros_of_either_sign(kernel, knobs):
    a, b = randn(6, 40), randn(5, 40, seed=1)
    a[2], a[3], b[1] = 0.0, -0.0, 0.0
    assert_same_bits(sc_matmul(a, b, **knobs), reference.sc_matmul(a, b, **knobs))
    zeros = sc_matmul(torch.zeros(3, 40), -torch.zeros(2, 40), **knobs)
    assert_same_bits(zeros, np.zeros((3, 2), np.float32))


@every_knob
def test_finite_inputs_whose_range_overflows(kernel, knobs):
    a, b = randn(6, 40).clamp(-1, 1) * 3.4e38, randn(5, 40, seed=1)
    assert_same_bits(sc_matmul(a, b, **knobs), reference.sc_matmul(a, b, **knobs))
    assert_same_bits(sc_matmul(a, a, **knobs), reference.sc_matmul(a, a, **knobs))


@every_knob
def test_subnormal_inputs_and_scales(kernel, knobs):
    a, b, scales = randn(6, 40) * 1e-40, randn(5, 40, seed=1), torch.full((40,), 1e-39)
    for s in (None, scales, 1 / scales.clamp(min=1e-38)):
        out = sc_matmul(a, b, smooth_scales=s, **knobs)
        assert_same_bits(out, reference.sc_matmul(a, b, smooth_scales=s, **knobs))


def test_float64_is_cast_first(kernel):
    a, b = randn(6, 40, dtype=torch.float64), randn(5, 40, seed=1, dtype=torch.float64)
    a[1, 3], b[2, 4] = 1e300, -1e-300
    out = sc_matmul(a, b)
    assert_same_bits(out, sc_matmul(a.float(), b.float()))
    assert out[1].isnan().all() and not out[0].isnan().any()


def test_auto_is_one_of_the_kernels_and_the_default():
    assert _C.cpu_kernel() == "auto"
    a, b = randn(6, 40), randn(5, 40, seed=1)
    expected = sc_matmul(a, b)
    for name in _C.cpu_kernels():
        with forced(name):
            assert _C.cpu_kernel() == name
            assert_same_bits(sc_matmul(a, b), expected)
    with pytest.raises(ValueError, match="name must be one of auto, reference, scalar, avx2, avx"):
        _C.set_cpu_kernel("sse")
