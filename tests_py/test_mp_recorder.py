"""The recorder of a calibration: keys, measured errors, what it accepts, its progress bar."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import assert_value_error, randn

from scmp_kernels import prepare, sc_matmul
from scmp_kernels.mp import CalibrationRecorder, calibrate_thresholds
from scmp_kernels.mp.calls import normalised_metric

LEVELS = [64, 16, 0]
VALUES = st.floats(width=32) | st.sampled_from([0.0, 1.0, 1e-9, 3e38, -3e38, np.inf, -np.inf])


@given(st.lists(VALUES, min_size=1, max_size=9), st.lists(st.floats(0, 1), max_size=3))
def test_keys_are_what_the_classifier_compares(metric, thresholds):
    metric, thresholds = torch.tensor(metric), sorted(thresholds, reverse=True)
    keys = normalised_metric(metric)
    expected = torch.ops.scmp.adaptive_classify_rows(metric, None, thresholds)
    found = (keys[:, None] < np.array(thresholds, np.float32)).sum(1)
    assert keys.dtype == np.float32 and found.tolist() == expected.tolist()


def uniform_errors(a, b, exact, levels, **knobs):
    """(rows, levels) from one uniform call per level."""
    found = []
    for level in levels:
        y = sc_matmul(a, b, stoc_len=level, **knobs) if level else torch.zeros_like(exact)
        found.append((y.double() - exact.double()).square().sum(-1).reshape(-1))
    return (torch.stack(found, -1) / exact.double().square().sum()).numpy()


CASES = {
    "plain": ((40, 24), (8, 24), {}),
    "halved chunks": ((40, 24), (8, 24), {"chunk_d": 10, "halve_bipolar_stoc_len": True}),
    "groups": ((41, 24), (8, 24), {"group_a": 4}),
    "batched": ((3, 10, 24), (3, 8, 24), {}),
    "batched groups": ((3, 10, 24), (3, 8, 24), {"group_a": 4, "sc_prec": 7}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sample_rows", [None, 6])
def test_measured_errors_are_those_of_uniform_calls(case, sample_rows):
    shape_a, shape_b, knobs = CASES[case]
    a, b = randn(*shape_a) * torch.rand(*shape_a[:-1], 1), randn(*shape_b, seed=1)
    recorder = CalibrationRecorder(LEVELS, sample_rows=sample_rows)
    exact = recorder.record("op", a, b, **knobs)
    torch.testing.assert_close(exact, a @ b.mT)
    (call,) = recorder.calls
    assert call.macs.tolist() == [8 * 24] * (a.numel() // 24)
    expected = uniform_errors(a, b, exact, LEVELS, **knobs)
    right = np.isclose(call.errors, expected, rtol=1e-9).all(-1)
    ends = [call.keys.argmin(), call.keys.argmax()]
    assert right.all() if sample_rows is None else right[ends].all() and right.sum() >= 6
    assert call.errors[:, 0].sum() == pytest.approx(expected[:, 0].sum(), rel=1)


def test_interpolation_between_rows_is_by_metric():
    """Rows of one direction: the error at length 0 is exactly the square of their size."""
    size = torch.arange(1, 101.0)[:, None]
    recorder = CalibrationRecorder(LEVELS, sample_rows=34)  # every third
    recorder.record("op", size * randn(1, 16), randn(4, 16, seed=1))
    expected = (size.square() / size.square().sum()).numpy()[:, 0]
    np.testing.assert_allclose(recorder.calls[0].errors[5:, 2], expected[5:], rtol=0.06)


def test_rows_that_are_alike_share_the_mean_of_the_sampled_ones():
    a = randn(1, 16).expand(20, 16).clone()
    recorder = CalibrationRecorder(LEVELS, sample_rows=4)
    recorder.record("op", a, randn(4, 16, seed=1))
    np.testing.assert_allclose(recorder.calls[0].errors[:, 2], 0.05, rtol=1e-6)


@pytest.mark.parametrize("sample_rows", [None, 3])
def test_rows_that_are_not_finite_count_no_error(sample_rows):
    a = randn(6, 16)
    a[1, 3], a[4, 0] = torch.nan, torch.inf
    recorder = CalibrationRecorder(LEVELS, sample_rows=sample_rows)
    recorder.record("op", a, randn(4, 16, seed=1))
    (call,) = recorder.calls
    assert np.isinf(call.keys[[1, 4]]).all() and np.isfinite(call.errors).all()
    assert not call.errors[[1, 4]].any() and call.errors[[0, 2, 3, 5]].all(0)[:2].all()
    if sample_rows is None:
        assert call.errors[:, 2].sum() == pytest.approx(1)


@pytest.mark.parametrize("shapes", [((0, 8), (3, 8)), ((5, 0), (3, 0)), ((5, 8), (0, 8))])
def test_empty_operands(shapes):
    recorder = CalibrationRecorder(LEVELS)
    recorder.record("op", *(torch.zeros(shape) for shape in shapes))
    assert not recorder.calls[0].errors.any() and not recorder.calls[0].macs.any()
    recorder.record("other", randn(5, 8), randn(3, 8, seed=1))
    assert calibrate_thresholds(recorder, 60).mean_length <= 60


def test_other_metrics():
    a, b, recorder = randn(9, 16), randn(4, 16, seed=1), CalibrationRecorder(LEVELS)
    recorder.record("op", a, b, metric="l2")
    recorder.record("op", a, b, metric=a.norm(dim=1))
    np.testing.assert_allclose(recorder.calls[0].keys, recorder.calls[1].keys, atol=1e-6)


def record(a=(4, 8), b=(3, 8), operator="op", **arguments):
    a, b = (randn(*x) if isinstance(x, tuple) else x for x in (a, b))
    CalibrationRecorder(LEVELS).record(operator, a, b, **arguments)


def add(metric=(0.0, 1), macs=1, errors=((1, 2, 3), (1, 2, 3)), operator="op", **where):
    metric = torch.tensor(metric) if isinstance(metric, tuple) else metric
    CalibrationRecorder(LEVELS).add(operator, metric, macs, errors, **where)


SHAPES = "a and b must have shapes (N, D) and (M, D), or (B, N, D) and (B, M, D), got "
RECORD_ERRORS = [
    ({"a": [1]}, "a must be a tensor, got list"),
    ({"b": prepare(torch.ones(3, 8))}, "b must be a tensor, got Prepared"),
    ({"b": (3, 9)}, SHAPES + "(4, 8) and (3, 9)"),
    ({"a": (2, 4, 8)}, SHAPES + "(2, 4, 8) and (3, 8)"),
    ({"a": (2, 4, 8), "b": (1, 3, 8)}, SHAPES + "(2, 4, 8) and (1, 3, 8)"),
    ({"b": torch.full((3, 8), torch.inf)}, "b must be finite, got NaN or Inf"),
    ({"stoc_len": 8}, "stoc_len must be left out, the levels are measured, got 8"),
    ({"metric": torch.rand(3)}, "metric must have shape (4,), got (3,)"),
    ({"metric": 3}, "metric must be a float tensor, got 3"),
    ({"operator": 3}, "operator must be a str, got 3"),
]
ADD_ERRORS = [
    ({"metric": torch.rand(2, 1)}, "metric must have shape (2,), got (2, 1)"),
    ({"metric": torch.tensor([1, 2])}, "metric must be a float tensor, got torch.int64"),
    ({"macs": -1}, "macs must be an integer >= 0, or one for each of the 2 rows, got -1"),
    ({"macs": [1]}, "macs must be an integer >= 0, or one for each of the 2 rows, got [1]"),
    ({"macs": 1.5}, "macs must be an integer >= 0, or one for each of the 2 rows, got 1.5"),
    (
        {"errors": [[1, 2], [1, 2]]},
        "errors must be numbers of shape (2, 3), rows and levels, got int64 of shape (2, 2)",
    ),
    ({"errors": [[1, 2], [1]]}, "errors must be numbers, got [[1, 2], [1]]"),
    ({"errors": [[1, 2, 3], [1, -2, 3]]}, "errors must be finite and >= 0, got -2"),
    ({"errors": np.full((2, 3), np.nan)}, "errors must be finite and >= 0, got nan"),
    ({"timestep": -1}, "timestep must be an integer >= 0, got -1"),
    ({"block_idx": 0.5}, "block_idx must be an integer >= 0, got 0.5"),
]
INIT_ERRORS = [
    ({"stoc_len_levels": [3]}, "stoc_len_levels must have at least 2 levels, got [3]"),
    ({"sample_rows": 1}, "sample_rows must be an integer >= 2, got 1"),
    ({"expected_calls": -1}, "expected_calls must be an integer >= 0, got -1"),
    ({"progress": "no"}, "progress must be True, False or None, got 'no'"),
]


@pytest.mark.parametrize(("arguments", "message"), RECORD_ERRORS)
def test_record_arguments(arguments, message):
    assert_value_error(lambda: record(**arguments), f"CalibrationRecorder.record: {message}")


@pytest.mark.parametrize(("arguments", "message"), ADD_ERRORS)
def test_add_arguments(arguments, message):
    assert_value_error(lambda: add(**arguments), f"CalibrationRecorder.add: {message}")


@pytest.mark.parametrize(("arguments", "message"), INIT_ERRORS)
def test_recorder_arguments(arguments, message):
    arguments = {"stoc_len_levels": LEVELS, **arguments}
    assert_value_error(lambda: CalibrationRecorder(**arguments), f"CalibrationRecorder: {message}")


def test_errors_of_the_product_are_those_of_sc_matmul():
    with pytest.raises(ValueError, match="^sc_matmul: .*32"):
        record(sc_prec=5)
    with pytest.raises(ValueError, match="^sc_matmul: .*per_tensor"):
        record(granularity="per_tensor")


def test_progress_bars(capsys):
    pytest.importorskip("tqdm")
    with CalibrationRecorder(LEVELS, progress=True, expected_calls=2) as recorder:
        recorder.record("op", randn(9, 8), randn(3, 8))
        recorder.record("op", randn(9, 8), randn(3, 8))
    assert "measuring: 100%" in capsys.readouterr().err
    calibrate_thresholds(recorder, 60, progress=True)
    assert "calibrating: 100%" in capsys.readouterr().err
    calibrate_thresholds(recorder, 60)  # no terminal
    calibrate_thresholds(recorder, 60, progress=False)
    assert capsys.readouterr() == ("", "")


def test_progress_without_tqdm(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    recorder = CalibrationRecorder(LEVELS)
    recorder.record("op", randn(9, 8), randn(3, 8))
    calibrate_thresholds(recorder, 60)
    with pytest.raises(ImportError, match="^calibrate_thresholds with progress=True needs tqdm"):
        calibrate_thresholds(recorder, 60, progress=True)
