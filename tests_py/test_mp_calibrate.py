"""Calibrated thresholds: the budget, the best choice, the table, the errors that it lowers."""

import itertools
import json
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx
from support import ROOT, assert_value_error, randn

from scmp_kernels import sc_matmul
from scmp_kernels.mp import (
    AdaptiveMPConfig,
    CalibrationRecorder,
    adaptive_classify_rows,
    calibrate_thresholds,
    compute_row_metric,
    exact_search,
)

LEVELS = [64, 16, 4]
METRICS = (
    st.lists(st.floats(width=32), max_size=12)
    | st.lists(st.integers(0, 5).map(float), max_size=12)
    | st.lists(st.floats(0, 100, width=32), max_size=12)
)


def sample_calls(seed, metrics, blocks=None):
    """Arguments of `add` for one call per metric, two operators in turn, in the given blocks."""
    rng = np.random.default_rng(seed)
    calls = []
    for i, metric in enumerate(metrics):
        errors = np.sort(rng.random((len(metric), len(LEVELS))))
        macs = rng.integers(1, 9, len(metric))
        where = {}
        if blocks:
            where = {"block_idx": i % blocks, "total_blocks": blocks, "timestep": i // 2}
            where["total_timesteps"] = len(metrics)
        calls.append((f"op{i % 2}", torch.tensor(metric, dtype=torch.float32), macs, errors, where))
    return calls


def recorded(calls):
    recorder = CalibrationRecorder(LEVELS, progress=False)
    for operator, metric, macs, errors, where in calls:
        recorder.add(operator, metric, macs, errors, **where)
    return recorder


def classified(calls, config):
    """Cost in length times multiply-accumulates, and mean error by call, with a config."""
    cost = error = 0
    for operator, metric, macs, errors, where in calls:
        rows = adaptive_classify_rows(metric, config, operator, **where)
        cost += int((rows.row_stoc_len.numpy() * macs).sum())
        error += errors[np.arange(len(macs)), rows.row_levels.numpy()].sum()
    return cost, error / max(1, sum(len(call[1]) > 0 for call in calls))


@settings(max_examples=60)
@given(st.lists(METRICS, min_size=1, max_size=6), st.integers(0, 3), st.floats(4, 70))
def test_the_rows_cost_what_was_predicted_and_no_more_than_the_budget(metrics, blocks, budget):
    calls = sample_calls(len(metrics), metrics, blocks)
    buckets = {"timestep_buckets": 2, "layer_buckets": 2} if blocks else {}
    macs = int(sum(call[2].sum() for call in calls))
    try:
        result = calibrate_thresholds(recorded(calls), budget, **buckets)
    except ValueError as error:
        if macs:  # the least budget that it names is one, and nothing below is
            least = float(re.search(r"at least ([\d.e-]+),", str(error))[1])
            assert budget < least
            result = calibrate_thresholds(recorded(calls), least, **buckets)
            assert result.mean_length == approx(least, rel=1e-15) and result.mean_length <= least
        return
    assert result.mean_length <= budget
    cost, error = classified([call for call in calls if len(call[1])], result.config())
    assert cost / macs == result.mean_length
    assert error == approx(result.error, rel=1e-9)
    assert result.error_bound <= result.error * (1 + 1e-9)
    assert sum(part.macs for part in result.rows) == macs


def least_error(calls, budget):
    """By trying all thresholds that tell rows apart, with the classifier itself."""
    choices = []
    for i in range(2):
        mine = [call for call in calls if call[0] == f"op{i}"]
        keys = {1.0}
        for call in mine:
            m = call[1].numpy()
            keys |= set(((m - m.min()) / (m.max() - m.min())).tolist())
        for pair in itertools.combinations_with_replacement(sorted(keys, reverse=True), 2):
            config = AdaptiveMPConfig(LEVELS, operator_default_thresholds={f"op{i}": pair})
            cost, error = classified(mine, config)
            choices.append((i, cost, error * len(mine) / len(calls)))
    first, second = ([c[1:] for c in choices if c[0] == i] for i in range(2))
    limit = budget * sum(call[2].sum() for call in calls)
    return min(e + f for c, e in first for d, f in second if c + d <= limit)


@pytest.mark.parametrize("seed", range(20))
def test_equals_brute_force(seed):
    rng = np.random.default_rng(seed)
    calls = sample_calls(seed, [rng.random(3), rng.random(4), rng.random(2)])
    least = calibrate_thresholds(recorded(calls), 64).error
    for budget in (50, 55, 60):
        result = calibrate_thresholds(recorded(calls), budget)
        assert least <= result.error
        assert result.error == approx(least_error(calls, budget), rel=1e-12)
        assert result.error == result.error_bound


def test_too_many_choices_to_look_at(monkeypatch):
    rng = np.random.default_rng(0)
    calls = sample_calls(0, [rng.random(50) for _ in range(6)])
    best = calibrate_thresholds(recorded(calls), 20)
    for name in ("_MOST_CHOICES", "_MOST_PAIRS"):
        with monkeypatch.context() as patch:
            patch.setattr(exact_search, name, 0)
            result = calibrate_thresholds(recorded(calls), 20)
        assert result.mean_length <= 20
        assert result.error_bound <= best.error <= result.error <= 1.01 * best.error


def test_macs_are_what_the_budget_counts():
    """A budget of rows starves the operator with 90 % of the rows and 1 % of the cost."""
    results, need = {}, np.linspace(1, 0, 900)
    for weighting, macs in {"macs": (100, 90_000), "rows": (1, 1)}.items():
        recorder = CalibrationRecorder([256, 64, 16])
        for operator, rows, m in (("cheap", 900, macs[0]), ("costly", 100, macs[1])):
            scale = (1 + need[:rows, None]) / rows
            recorder.add(operator, torch.tensor(need[:rows]), m, scale / [256, 64, 16])
        results[weighting] = calibrate_thresholds(recorder, 64)
    cheap = {name: result.rows[0].mean_length for name, result in results.items()}
    assert cheap["macs"] == 256 and cheap["rows"] < 64
    costly = results["rows"].rows[1].mean_length
    assert (cheap["rows"] * 9e4 + costly * 9e6) / 9.09e6 > 1.5 * 64  # what the streams would cost
    assert results["macs"].mean_length <= 64


def test_table_round_trip(tmp_path):
    rng = np.random.default_rng(3)
    calls = sample_calls(3, [rng.random(30) for _ in range(8)], blocks=4)
    calls.append(("plain", torch.rand(9), np.full(9, 5), rng.random((9, 3)), {}))
    path = tmp_path / "new" / "table.json"
    result = calibrate_thresholds(recorded(calls), 20, path, timestep_buckets=2, layer_buckets=4)
    config = AdaptiveMPConfig(LEVELS, threshold_table_path=str(path))
    config.threshold_table_path = None
    assert config == result.config()
    assert set(config.operator_default_thresholds) == {"op0", "op1", "plain"}
    assert set(result.unseen_defaults) == {"op0", "op1"}
    assert {(part.operator, part.bucket) for part in result.rows} == {
        ("plain", None),
        *((key[0], key) for key in config.bucket_thresholds),
    }
    table = json.loads(path.read_text())
    assert table["calibration"]["mean_length"] == result.mean_length <= 20
    assert table["operator_defaults"]["plain"]["macs"] == 45
    assert result.text().splitlines()[-1].split()[:2] == ["all", f"{result.mean_length:.2f}"]


def test_same_records_give_the_same_result():
    rng = np.random.default_rng(4)
    calls = sample_calls(4, [rng.integers(0, 9, 40).astype(float) for _ in range(6)])
    first = calibrate_thresholds(recorded(calls), 15.5, candidates=7)
    assert first == calibrate_thresholds(recorded(calls), 15.5, candidates=7)


def test_weights_move_cycles_to_an_operator():
    rng = np.random.default_rng(5)
    calls = sample_calls(5, [rng.random(40) for _ in range(4)])
    plain = calibrate_thresholds(recorded(calls), 20)
    weighted = calibrate_thresholds(recorded(calls), 20, operator_weights={"op1": 100})
    assert weighted.rows[1].mean_length > plain.rows[1].mean_length
    assert weighted.rows[1].error < plain.rows[1].error


def test_errors():
    recorder = recorded([("up", torch.tensor([0.0, 1]), np.array([3, 1]), np.ones((2, 3)), {})])
    message = "mean_length must be at least 19.0, the least that thresholds can give the recorded "
    for arguments, knobs, text in [
        ([{}, 3], {}, "recorder must be a CalibrationRecorder, got {}"),
        ([recorder, 18], {}, message + "rows, got 18.0"),
        ([recorder, "9"], {}, "mean_length must be a number in [0, 2147483647], got '9'"),
        ([recorder, 20], {"candidates": 1}, "candidates must be an integer >= 2, got 1"),
        ([recorder, 20], {"layer_buckets": 0}, "layer_buckets must be an integer >= 1, got 0"),
        ([recorder, 20], {"progress": 1}, "progress must be True, False or None, got 1"),
        ([recorder, 20], {"operator_weights": [1]}, "operator_weights must be a dict, got [1]"),
        (
            [recorder, 20],
            {"operator_weights": {"down": 1}},
            "operator_weights must have keys among the recorded operators (up), got 'down'",
        ),
        (
            [recorder, 20],
            {"operator_weights": {"up": 0}},
            "operator_weights['up'] must be a number in [1e-06, 1000000.0], got 0",
        ),
        (
            [CalibrationRecorder(LEVELS), 20],
            {},
            "recorder must have rows with multiply-accumulates, times the longest level below "
            "2**63 in all, got 0 in 0 calls",
        ),
    ]:
        call = lambda a=arguments, k=knobs: calibrate_thresholds(*a, **k)  # noqa: E731
        assert_value_error(call, f"calibrate_thresholds: {text}")
    assert calibrate_thresholds(recorder, 19).mean_length == 19


def test_less_error_than_uniform_streams_at_the_same_mean_length():
    """Rows of very different size, on streams whose lengths the table gives."""
    levels, weights = [256, 64, 16], {"up": randn(64, 48), "down": randn(48, 64, seed=1)}
    recorder, inputs = CalibrationRecorder(levels, sample_rows=64), {}
    for i, (operator, weight) in enumerate(weights.items()):
        scale = torch.rand(200, 1, generator=torch.Generator().manual_seed(i)) ** 4
        inputs[operator] = scale * randn(200, weight.shape[1], seed=2 + i)
        exact = recorder.record(operator, inputs[operator], weight)
        torch.testing.assert_close(exact, inputs[operator] @ weight.T)
    result = calibrate_thresholds(recorder, 64)
    cost = macs = 0
    for part, (operator, x) in zip(result.rows, inputs.items(), strict=True):
        rows = adaptive_classify_rows(compute_row_metric(x), result.config(), operator)
        exact = x @ weights[operator].T
        for lengths, predicted in ((rows.row_stoc_len, part.error), (64, part.uniform_error)):
            y = sc_matmul(x, weights[operator], stoc_len=lengths)
            error = float((y - exact).square().sum() / exact.square().sum())
            assert error == approx(predicted, rel=0.25)  # from a third of the rows
        cost += int(rows.row_stoc_len.sum()) * weights[operator].numel()
        macs += len(x) * weights[operator].numel()
    assert cost / macs == result.mean_length <= 64 == result.uniform_length
    assert result.error < 0.5 * result.uniform_error


def test_documented_example(tmp_path, monkeypatch, capsys):
    """The code of docs/mixed_precision.md runs as it is, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "mixed_precision.md").read_text()
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})
    words = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1].split()
    output = capsys.readouterr().out.split()[: len(words)]
    for word, found in zip(words, output, strict=True):
        number = re.fullmatch(r"[0-9.]+", word)
        assert found == word if number is None else float(found) == approx(float(word), rel=0.05)
