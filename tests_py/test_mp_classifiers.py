"""The row and group classifiers: golden data, a second implementation in numpy, edges, errors."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import GOLDEN, assert_value_error, randn

from scmp_kernels import mp

OPS = torch.ops.scmp
MP_GOLDEN = GOLDEN / "mp_public.json"


def golden(*names):
    if not MP_GOLDEN.exists():
        return []
    return [entry for entry in json.loads(MP_GOLDEN.read_text()) if entry["fn"] in names]


def metric_of(entry):
    return torch.tensor(entry["metric"], dtype=torch.float32)


@pytest.mark.parametrize("entry", golden("classify_rows_by_metric"))
def test_golden_rank(entry):
    out = mp.classify_rows_by_metric(metric_of(entry), entry["levels"], entry["fractions"])
    assert out.row_levels.tolist() == entry["row_levels"]
    rows = {str(length): rows.tolist() for length, rows in out.level_row_indices.items()}
    assert rows == entry["idx"] and list(rows) == list(entry["idx"])


@pytest.mark.parametrize("entry", golden("adaptive:target_fractions"))
def test_golden_target_fractions(entry):
    config = mp.AdaptiveMPConfig(entry["levels"], target_fractions=entry["fractions"])
    out = mp.adaptive_classify_rows(metric_of(entry), config)
    assert out.row_levels.tolist() == entry["row_levels"]


@pytest.mark.parametrize("entry", golden("adaptive:table"))
def test_golden_table(entry, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(entry["table"]))
    config = mp.AdaptiveMPConfig(entry["levels"], threshold_table_path=str(path))
    out = mp.adaptive_classify_rows(metric_of(entry), config, **entry["args"])
    assert out.row_levels.tolist() == entry["row_levels"]


@pytest.mark.parametrize("entry", golden("classify_groups_by_range"))
def test_golden_groups(entry):
    config = mp.RangeMPConfig(
        entry["levels"],
        base_threshold=entry["base_threshold"],
        operator_thresholds=entry["operator_thresholds"],
    )
    weight = torch.tensor(entry["weight"], dtype=torch.float32)
    out = mp.classify_groups_by_range(weight, entry["group_size"], config, entry["operator"])
    assert out == entry["out"]


METRICS = st.lists(st.floats(width=32), max_size=40).map(lambda x: np.array(x, np.float32))


@given(METRICS, st.sampled_from([[1.0], [0.5, 0.5], [0.25] * 4, [0.0, 0.9, 0.1], [0.3335] * 3]))
def test_rank_against_numpy(metric, fractions):
    order = sorted(
        range(len(metric)), key=lambda i: (not math.isnan(metric[i]), -np.float64(metric[i]), i)
    )
    order = [i for i in order if math.isnan(metric[i])] + [
        i for i in order if not math.isnan(metric[i])
    ]
    expected, first = np.zeros(len(metric), int), 0
    for level, fraction in enumerate(fractions):
        left = len(metric) - first
        last = level + 1 == len(fractions)
        count = left if last else min(left, int(np.rint(fraction * len(metric))))
        expected[order[first : first + count]] = level
        first += count
    out = OPS.classify_rows_by_metric(torch.from_numpy(metric), fractions)
    assert out.tolist() == expected.tolist()


@given(METRICS, st.sampled_from([[], [0.5], [1.0, 0.3, 0.3, 0.0]]))
def test_thresholds_against_numpy(metric, thresholds):
    finite = metric[np.isfinite(metric)]
    expected = np.zeros(len(metric), int)
    if len(finite):
        with np.errstate(all="ignore"):
            span = finite.max() - finite.min()
            if np.isfinite(span) and float(span) >= 1e-8:
                for i, value in enumerate(metric):
                    m = (value - finite.min()) / span
                    above = [k for k, t in enumerate(thresholds) if m >= np.float32(t)]
                    level = above[0] if above else len(thresholds)
                    expected[i] = 0 if math.isnan(m) else level
    out = OPS.adaptive_classify_rows(torch.from_numpy(metric), None, thresholds)
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_row_metrics(dtype):
    x = randn(2, 5, 7).to(dtype)
    wide = x.double()
    l2 = wide.square().sum(-1).sqrt()
    for name, expected in {
        "amax": wide.abs().amax(-1),
        "l2": l2,
        "crest": wide.abs().amax(-1) / (l2 + 1e-12),
    }.items():
        out = mp.compute_row_metric(x, name)
        assert out.dtype == torch.float32 and torch.equal(out, expected.float())
    assert torch.equal(mp.compute_row_metric(x[0]), x[0].abs().amax(-1).float())
    assert torch.equal(mp.compute_row_metric(torch.empty(3, 0)), torch.zeros(3))


def test_an_assignment_feeds_lengths():
    out = mp.classify_rows_by_metric(
        torch.tensor([1.0, 3.0, 2.0, 3.0]), [64, 16, 0], [0.5, 0.25, 0.25]
    )
    assert out.row_levels.tolist() == [2, 0, 1, 0]
    assert out.row_stoc_len.dtype == torch.int32 and out.row_stoc_len.tolist() == [0, 64, 16, 64]
    assert {k: v.tolist() for k, v in out.level_row_indices.items()} == {
        64: [1, 3],
        16: [2],
        0: [0],
    }


def test_rows_of_a_level_come_best_first_by_rank_and_ascending_by_threshold():
    metric = torch.tensor([1.0, 5.0, 4.0, 9.0, 2.0])
    by_rank = mp.classify_rows_by_metric(metric, [8, 4], [0.6, 0.4]).level_row_indices
    assert by_rank[8].tolist() == [3, 1, 2] and by_rank[4].tolist() == [4, 0]
    config = mp.AdaptiveMPConfig([8, 4], operator_default_thresholds={"qk": [0.3]})
    by_threshold = mp.adaptive_classify_rows(metric, config, "qk").level_row_indices
    assert by_threshold[8].tolist() == [1, 2, 3] and by_threshold[4].tolist() == [0, 4]


def test_an_empty_metric_is_an_empty_assignment():
    config = mp.AdaptiveMPConfig([8, 4])  # without any thresholds
    out = mp.adaptive_classify_rows(torch.empty(0), config)
    assert out.row_levels.tolist() == [] and set(out.level_row_indices) == {8, 4}


def test_groups_of_odd_sizes():
    config = mp.RangeMPConfig([32, 16])
    assert mp.classify_groups_by_range(torch.empty(0, 4), 2, config) == []
    assert len(mp.classify_groups_by_range(randn(6, 4), 0, config)) == 1
    assert len(mp.classify_groups_by_range(randn(6, 4), 6, config)) == 1
    with pytest.raises(ValueError, match="group_size must divide the 6 rows of weight, got 4"):
        mp.classify_groups_by_range(randn(6, 4), 4, config)


def test_errors():
    metric, other = torch.ones(4), mp.MPConfig([8, 4])
    for run, text in [
        (
            lambda: mp.adaptive_classify_rows(metric, other, "x"),
            "adaptive_classify_rows: config must be an AdaptiveMPConfig, "
            f"got {repr(other)[:97]}...",
        ),
        (
            lambda: mp.classify_groups_by_range(metric[None], 1, None),
            "classify_groups_by_range: config must be a RangeMPConfig, got None",
        ),
        (
            lambda: OPS.classify_rows_by_metric(metric[None], [1.0]),
            "classify_rows_by_metric: metric must be 1D, got 2D of shape [1, 4]",
        ),
        (
            lambda: OPS.classify_rows_by_metric(metric, [0.5]),
            "classify_rows_by_metric: level_fractions must add up to 1 within 0.001, got 0.5",
        ),
        (
            lambda: OPS.classify_rows_by_metric(metric, [1.5, -0.5]),
            "classify_rows_by_metric: level_fractions must lie in [0, 1], got 1.5",
        ),
        (
            lambda: OPS.adaptive_classify_rows(metric),
            "adaptive_classify_rows: give either target_fractions or thresholds",
        ),
        (
            lambda: OPS.adaptive_classify_rows(metric, None, [0.2, 0.5]),
            "adaptive_classify_rows: thresholds must be non-increasing in [0, 1], "
            "got 0.5 after 0.2",
        ),
        (
            lambda: mp.compute_row_metric(torch.ones(3, 3), "max"),
            "compute_row_metric: name must be 'amax', 'l2' or 'crest', got 'max'",
        ),
        (
            lambda: mp.compute_row_metric(metric),
            "compute_row_metric: x must have shape (..., N, D), got 1D of shape [4]",
        ),
    ]:
        assert_value_error(run, text)


def arguments():
    metric = randn(9)
    yield OPS.compute_row_metric, (randn(3, 4), "crest")
    yield OPS.classify_rows_by_metric, (metric, [0.5, 0.5])
    yield OPS.adaptive_classify_rows, (metric, None, [0.7, 0.2])
    yield OPS.classify_groups_by_range, (randn(6, 4), 2, 0.3, 3)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(("op", "args"), list(arguments()))
def test_on_cuda_without_a_sync(op, args):
    x, *rest = args
    on_gpu = x.cuda()
    op(on_gpu, *rest)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = op(on_gpu, *rest)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(out.cpu(), op(x, *rest))
