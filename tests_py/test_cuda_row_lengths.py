"""Stream lengths by row and chunk on CUDA: the CPU's bits on every kernel, no sync, in graphs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_same_bits, assert_value_error, on_cuda_kernel, randn
from test_cuda_streams import capture

from scmp_kernels import _C, mp, prepare, sc_conv2d, sc_matmul

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

KERNELS = ["auto", *_C.cuda_kernels()]


def check(a, b, **knobs):
    """Every kernel gives the CPU's bits, with b plain and prepared."""
    expected = sc_matmul(a, b, **knobs)
    device = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in knobs.items()}
    lengths = {k: device.pop(k) for k in ("stoc_len", "rung_table", "level_lens") if k in device}
    made_for = {k: v for k, v in device.items() if k != "group_a"}
    free = {k: v for k, v in device.items() if k != "smooth_scales"}
    for weight, call in ((b.cuda(), device), (prepare(b.cuda(), **made_for), free)):
        for kernel in KERNELS:
            actual = on_cuda_kernel(
                kernel,
                lambda weight=weight, call=call: sc_matmul(a.cuda(), weight, **call, **lengths),
            )
            if actual is not None:
                assert_same_bits(actual.cpu(), expected, f"({kernel} kernel)")


@settings(max_examples=80)
@given(st.data())
def test_any_rows(data):
    n, m, d = (data.draw(st.integers(1, most)) for most in (300, 200, 300))
    prec = data.draw(st.sampled_from((8, 8, 4, 10)))
    halve = data.draw(st.booleans())
    most = 2**prec // (2 if halve else 1)
    chunk = data.draw(st.sampled_from((0, 0, 16, 72, 128)))
    chunks = -(-d // chunk) if chunk else 1
    form = data.draw(st.sampled_from(("rows", "chunks", "rungs"))) if chunk else "rows"
    g = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    levels = [most, most - 1, most // 2, 1, 0][data.draw(st.integers(0, 2)) :]
    rungs = torch.randint(0, len(levels), (n, chunks), generator=g)
    knobs = {
        "sc_prec": prec,
        "halve_bipolar_stoc_len": halve,
        "chunk_d": chunk,
        "rng_levels": data.draw(st.sampled_from((None, most // 2 + 1))),
        "group_a": data.draw(st.sampled_from((1, 4))),
    }
    if form == "rungs":
        knobs |= {"rung_table": rungs, "level_lens": levels}
    else:
        lengths = torch.tensor(levels)[rungs]
        knobs["stoc_len"] = lengths if form == "chunks" else lengths[:, 0].contiguous()
    check(randn(n, d, seed=n), randn(m, d, seed=m), **knobs)


# Sizes at which the operands are exchanged: b's cycles are staged by length class, a is expanded.
WIDE = {
    "whole tiles": (256, 512, 256, 0),
    "odd": (131, 301, 77, 0),
    "two blocks of columns": (300, 1000, 70, 0),
    "a batch": (140, 260, 96, 2),
}
LENGTHS = {  # knobs, and the longest stream
    "up to 64": ({"halve_bipolar_stoc_len": True}, 64),
    "up to 96": ({"halve_bipolar_stoc_len": True}, 96),
    "up to 128": ({"halve_bipolar_stoc_len": True}, 128),
    "up to 255": ({}, 255),
}


def some_lengths(rows, most):
    """Every length, or half of the time one of a few: multiples of 32, the longest, none."""
    g = torch.Generator().manual_seed(rows)
    few = torch.tensor([0, 1, 32, 64, most // 2, most]).clamp(max=most)
    chosen = few[torch.randint(0, len(few), (rows,), generator=g)]
    return torch.where(torch.arange(rows) % 2 == 0, chosen, torch.arange(rows) * 7 % (most + 1))


@pytest.mark.parametrize("size", WIDE)
@pytest.mark.parametrize("case", LENGTHS)
def test_rows_of_a_smaller_than_b(size, case):
    n, m, d, batch = WIDE[size]
    knobs, most = LENGTHS[case]
    lead = (batch,) if batch else ()
    a, b = randn(*lead, n, d), randn(*lead, m, d, seed=1)
    lengths = some_lengths(max(1, batch) * n, most).view(*lead, n)
    check(a, b, stoc_len=lengths, **knobs)
    if not batch:
        cells = some_lengths(2 * n, most).view(n, 2)
        check(a, b, stoc_len=cells, chunk_d=-(-d // 2), **knobs)


def test_one_class_of_lengths_and_none():
    a, b = randn(160, 96), randn(300, 96, seed=1)
    for length in (0, 20, 64):
        check(a, b, stoc_len=torch.full((160,), length), halve_bipolar_stoc_len=True)


def test_rows_of_a_smaller_than_b_with_bad_values():
    a, b = randn(160, 96), randn(300, 96, seed=1)
    a[3, 0], b[2, 1] = float("nan"), float("inf")
    lengths = some_lengths(160, 128)
    halved = {"halve_bipolar_stoc_len": True}
    check(a, b, stoc_len=lengths, **halved)
    # Lengths out of range, and codes that no quantizer made.
    wrong = lengths.clone()
    wrong[[5, 80]] = torch.tensor([-1, 129])
    expected = sc_matmul(a, b, stoc_len=lengths, **halved)
    expected[[5, 80]] = float("nan")
    assert_same_bits(sc_matmul(a.cuda(), b.cuda(), stoc_len=wrong.cuda(), **halved).cpu(), expected)
    ready = prepare(b.cuda(), **halved)
    with torch.no_grad():
        ready.codes[7, 1] = 1000
    expected = sc_matmul(a, b, stoc_len=lengths, **halved)
    expected[:, 7] = torch.where(lengths > 0, float("nan"), 0.0)
    assert_same_bits(sc_matmul(a.cuda(), ready, stoc_len=lengths.cuda()).cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_types_of_lengths_and_many_levels(dtype):
    a, b = randn(160, 32), randn(300, 32, seed=1)
    lengths = some_lengths(160, 127).to(dtype)
    check(a, b, stoc_len=lengths)
    rungs = (torch.arange(160) * 13 % 700).view(160, 1)
    if dtype == torch.int64:  # more levels than one launch takes
        table = {"rung_table": rungs, "level_lens": [i % 257 for i in range(700)]}
        check(a, b, chunk_d=32, **table)


def test_a_smaller_than_b_with_sequences_of_their_own_by_position():
    from scmp_kernels.sc.config_helpers import make_sobol_custom_seed_config

    config = make_sobol_custom_seed_config(64, 64, 8, use_scrambling=True)
    a, b = randn(160, 64), randn(300, 64, seed=1)
    check(a, b, stoc_len=some_lengths(160, 128), config=config, halve_bipolar_stoc_len=True)
    fine = {"sc_prec": 12, "chunk_d": 64, "level_lens": [256, 100, 0]}  # tables too large
    check(a, b, rung_table=(torch.arange(160) % 3).view(160, 1), **fine)


@pytest.mark.parametrize(
    ("n", "m", "d", "chunk", "knobs"),
    [
        (512, 700, 32768, 0, {"rng_levels": 128}),  # several slabs of bits
        (2048, 4096, 4096, 16, {"halve_bipolar_stoc_len": True}),  # many blocks times chunks
        (700, 300, 4096, 16, {"halve_bipolar_stoc_len": True}),  # a is the larger
    ],
)
def test_large(n, m, d, chunk, knobs):
    a, b = randn(n, d).cuda(), randn(m, d, seed=1).cuda()
    cells = n * (d // chunk if chunk else 1)
    lengths = some_lengths(cells, 128 if "halve_bipolar_stoc_len" in knobs else 255).cuda()
    knobs = {**knobs, "chunk_d": chunk, "stoc_len": lengths.view(n, -1) if chunk else lengths}
    expected = on_cuda_kernel("mma_b1", lambda: sc_matmul(a, b, **knobs))
    assert_same_bits(sc_matmul(a, b, **knobs).cpu(), expected.cpu())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_convolution_to_many_channels(layout):
    x, weight = randn(1, 64, 12, 12).contiguous(memory_format=layout), randn(256, 64, 3, 3, seed=1)
    lengths = some_lengths(144, 128)
    knobs = {"padding": 1, "halve_bipolar_stoc_len": True}
    expected = sc_conv2d(x, weight, stoc_len=lengths, **knobs)
    y = sc_conv2d(x.cuda(), weight.cuda(), stoc_len=lengths.cuda(), **knobs)
    assert_same_bits(y.cpu(), expected)


def test_batches():
    lengths = torch.arange(4 * 70).view(4, 70) * 7 % 257
    check(randn(4, 70, 64), randn(4, 90, 64, seed=1), stoc_len=lengths)
    halved = {"halve_bipolar_stoc_len": True, "group_a": 3}
    check(randn(4, 70, 64), randn(4, 90, 64, seed=1), stoc_len=lengths % 129, **halved)


def test_a_config_and_smoothing():
    from scmp_kernels.sc.config_helpers import make_sobol_custom_seed_config

    config = make_sobol_custom_seed_config(64, 64, 8, use_scrambling=True)
    lengths = torch.arange(50) * 11 % 257
    scales = randn(64, seed=3).abs() + 0.1
    check(randn(50, 64), randn(90, 64, seed=1), stoc_len=lengths, config=config)
    check(randn(50, 64), randn(90, 64, seed=1), stoc_len=lengths, smooth_scales=scales)


def test_length_0_wins_over_nan():
    a, b = randn(40, 64), randn(30, 64, seed=1)
    a[3, 0], b[2, 1] = float("nan"), float("inf")
    lengths = torch.full((40,), 64)
    lengths[[3, 5]] = 0
    check(a, b, stoc_len=lengths)
    by_chunk = torch.full((40, 4), 64)
    by_chunk[3, 0] = by_chunk[:, 1] = 0
    check(a, b, stoc_len=by_chunk, chunk_d=16)


def test_values_out_of_range_give_nan_or_raise(monkeypatch):
    a, b = randn(20, 64).cuda(), randn(30, 64, seed=1).cuda()
    lengths = torch.full((20,), 64)
    good = sc_matmul(a, b, stoc_len=lengths)
    for bad in (-1, 257, 2**32 + 64):
        wrong = lengths.clone()
        wrong[7] = bad
        out = sc_matmul(a, b, stoc_len=wrong.cuda())
        assert out[7].isnan().all()
        keep = torch.arange(20) != 7
        assert_same_bits(out[keep.cuda()].cpu(), good[keep.cuda()].cpu())
        with pytest.raises(ValueError, match=r"stoc_len must lie in \[0, 256\]"):
            sc_matmul(a, b, stoc_len=wrong)
    rungs = torch.zeros(20, 4, dtype=torch.int32)
    rungs[7, 1] = 2
    table = {"chunk_d": 16, "level_lens": [64, 8]}
    assert sc_matmul(a, b, rung_table=rungs.cuda(), **table)[7].isnan().all()
    monkeypatch.setenv("SCMP_SYNC_CHECKS", "1")
    assert_value_error(
        lambda: sc_matmul(a, b, stoc_len=wrong.cuda()),
        f"sc_matmul: row_stoc_len must lie in [0, 256], got {bad} at row 7",
    )
    assert_value_error(
        lambda: sc_matmul(a, b, rung_table=rungs.cuda(), **table),
        "sc_matmul: rung_table must lie in [0, 1], got 2 at row 7",
    )


def test_classify_and_multiply_in_a_graph():
    a, b = randn(96, 64).cuda(), randn(80, 64, seed=1).cuda()

    def run():
        metric = mp.compute_row_metric(a)
        rows = mp.classify_rows_by_metric(metric, [256, 64, 0], [0.25, 0.5, 0.25])
        return sc_matmul(a, b, stoc_len=rows.row_stoc_len)

    graph, out = capture(run)
    for seed in (5, 6):
        a.copy_(randn(96, 64, seed=seed))
        graph.replay()
        assert_same_bits(out.cpu(), run().cpu())


def test_convolution():
    x, weight = randn(2, 4, 12, 9), randn(8, 4, 3, 3, seed=1)
    lengths = torch.arange(2 * 12 * 9) * 5 % 257
    for groups in (1, 2, 4):
        w = weight[:4, : 4 // groups] if groups == 4 else weight[:, : 4 // groups]
        for group_a in (1, 5):
            knobs = {"padding": 1, "group_a": group_a}
            expected = sc_conv2d(x, w, groups=groups, stoc_len=lengths, **knobs)
            knobs["stoc_len"] = lengths.cuda()
            assert_same_bits(sc_conv2d(x.cuda(), w.cuda(), groups=groups, **knobs).cpu(), expected)
            ready = prepare(w.cuda(), groups=groups)
            assert_same_bits(sc_conv2d(x.cuda(), ready, **knobs).cpu(), expected)


@pytest.mark.parametrize("groups", [2, 4])
def test_a_convolution_with_groups_is_not_lowered(groups):
    x, weight = randn(2, 4, 12, 9).cuda(), randn(4, 4 // groups, 3, 3, seed=1).cuda()
    lengths = torch.arange(2 * 12 * 9).cuda() % 257
    with torch.profiler.profile() as profile:
        sc_conv2d(x, weight, padding=1, groups=groups, stoc_len=lengths)
    called = {event.key for event in profile.key_averages()}
    assert "scmp::conv2d_products" in called
    assert not {"aten::im2col", "scmp::sc_matmul"} & called


def test_gradients():
    a, b = randn(20, 64).cuda().requires_grad_(), randn(30, 64, seed=1).cuda().requires_grad_()
    lengths = torch.arange(20).cuda() % 3 * 64
    g = randn(20, 30, seed=2).cuda()
    grad_a, grad_b = torch.autograd.grad(sc_matmul(a, b, stoc_len=lengths), (a, b), g)
    counted = (lengths > 0)[:, None]
    torch.testing.assert_close(grad_a, (g @ b) * counted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grad_b, g.T @ (a * counted), rtol=1e-4, atol=1e-4)
