"""The instruments of mixed precision: what they record, write, sum up and draw."""

import csv
import math
import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import assert_value_error, randn, threads

from scmp_kernels.mp import (
    MetricProfiler,
    MPDistributionLogger,
    RowAssignment,
    get_current_block_idx,
    set_current_block_idx,
)


@pytest.fixture(autouse=True)
def fresh():
    """An empty logger, a profiler that is empty and off, no current block."""
    with MPDistributionLogger():
        yield
    MetricProfiler.disable()
    MetricProfiler.clear()
    set_current_block_idx(None)


def assigned(*row_levels, levels=(64, 32, 0)):
    return RowAssignment.from_levels(torch.tensor(row_levels, dtype=torch.int64), levels)


def read(path):
    with open(path, newline="") as file:
        return list(csv.reader(file))


def in_threads(count, work):
    """Run work(0), ..., work(count - 1) at once, and raise what one raises."""
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:  # handed to the test's thread
            errors.append(error)

    workers = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def test_current_block_is_per_thread():
    set_current_block_idx(7)
    seen = []

    def work(i):
        seen.append(get_current_block_idx())
        set_current_block_idx(i)
        assert get_current_block_idx() == i

    in_threads(3, work)
    assert seen == [None] * 3 and get_current_block_idx() == 7
    message = "set_current_block_idx: i must be an integer or None, got 1.5"
    assert_value_error(lambda: set_current_block_idx(1.5), message)
    assert get_current_block_idx() == 7


# MPDistributionLogger


def test_distribution_csv(tmp_path):
    path = tmp_path / "new" / "levels.csv"
    MPDistributionLogger.log(3, 1, "qk", assigned(0, 2, 2), 3)
    MPDistributionLogger.log(4, None, "a,b", assigned(1, levels=(128, 64)), total_rows=8)
    set_current_block_idx(9)
    MPDistributionLogger.log(None, None, "av", assigned(), 0)
    assert MPDistributionLogger.dump_csv(path) == 3
    columns = "timestep,block,operator,total_rows"
    columns += "".join(f",sl_{n}_count,sl_{n}_frac" for n in (128, 64, 32, 0))
    assert path.read_bytes().decode().splitlines() == [
        columns,
        "3,1,qk,3,,,1,0.3333,0,0.0,2,0.6667",
        '4,,"a,b",8,0,0.0,1,0.125,,,,',
        ",9,av,0,,,0,0.0,0,0.0,0,0.0",
    ]
    assert MPDistributionLogger.dump_csv(path) == 0
    assert read(path) == [["timestep", "block", "operator", "total_rows"]]


def test_distribution_default_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    MPDistributionLogger.log(0, 0, "qk", assigned(0), 1)
    assert MPDistributionLogger.dump_csv() == 1
    assert len(read("debug_mp_distribution.csv")) == 2


def test_dump_clears_the_distribution_alone(tmp_path):
    MPDistributionLogger.log(0, 0, "av", assigned(0), 1)
    MPDistributionLogger.log_compute(0, 0, "qk", 100, 25)
    MPDistributionLogger.dump_csv(tmp_path / "levels.csv")
    assert list(MPDistributionLogger.stats()) == ["qk"]


def test_dump_that_fails_keeps_the_entries(tmp_path):
    MPDistributionLogger.log(0, 0, "qk", assigned(0), 1)
    with pytest.raises(OSError):
        MPDistributionLogger.dump_csv(tmp_path)
    assert MPDistributionLogger.dump_csv(tmp_path / "levels.csv") == 1


def test_log_takes_a_dict_of_rows(tmp_path):
    assignment = SimpleNamespace(level_row_indices={64: torch.tensor([0, 2]), 32: []})
    MPDistributionLogger.log(0, 0, "qk", assignment, 2)
    MPDistributionLogger.dump_csv(tmp_path / "levels.csv")
    assert read(tmp_path / "levels.csv")[1] == ["0", "0", "qk", "2", "2", "1.0", "0", "0.0"]


def test_log_does_not_see_later_changes():
    levels = torch.zeros(4, dtype=torch.int64)
    MPDistributionLogger.log(0, 0, "qk", RowAssignment.from_levels(levels, [64, 32]), 4)
    levels.fill_(1)
    assert MPDistributionLogger.stats()["qk"]["actual"] == 4 * 64


def test_costs_by_operator(capsys, tmp_path):
    MPDistributionLogger.log(0, 0, "qk", assigned(0, 1, 2, 2), 4)
    MPDistributionLogger.log(1, 0, "qk", assigned(0, 0), 2)
    MPDistributionLogger.log(0, 0, "av", assigned(0, 0), 2)
    MPDistributionLogger.log_compute(0, 0, "av", 10**30, 10**30 // 4)
    MPDistributionLogger.log_compute(1, 0, "av", 10**30, 10**30 // 4)
    MPDistributionLogger.log_compute(0, 0, "fc1", 8, 16)
    stats = MPDistributionLogger.stats(128)
    assert capsys.readouterr().out == ""
    assert stats == {
        "qk": {"baseline": 6 * 128, "actual": 3 * 64 + 32, "savings": 1 - 224 / 768},
        "av": {"baseline": 2 * 10**30, "actual": 10**30 // 2, "savings": 0.75},
        "fc1": {"baseline": 8, "actual": 16, "savings": -1.0},
    }
    assert stats.kinds == {"qk": "rows", "av": "compute", "fc1": "compute"}
    assert stats.totals["rows"] == stats["qk"]
    assert stats.totals["compute"]["baseline"] == 2 * 10**30 + 8
    assert stats.totals["compute"]["actual"] == 10**30 // 2 + 16
    path = tmp_path / "new" / "summary.txt"
    assert MPDistributionLogger.summary(128, save_path=path) == stats
    printed = capsys.readouterr().out
    assert path.read_text() == printed
    lines = [line.split() for line in printed.splitlines()]
    assert lines[0] == ["operator", "cost", "baseline", "actual", "savings"]
    assert ["qk", "rows", "768", "224", "70.83%"] in lines
    assert [line[:2] for line in lines[-2:]] == [["total", "compute"], ["total", "rows"]]


def test_summary_default_length_and_nothing_to_save(capsys):
    MPDistributionLogger.log(0, 0, "qk", assigned(0), 1)
    MPDistributionLogger.log(0, 0, "av", assigned(), 0)
    MPDistributionLogger.log_compute(0, 0, "fc1", 0, 3)
    stats = MPDistributionLogger.summary()
    assert stats["qk"] == {"baseline": 256, "actual": 64, "savings": 0.75}
    assert stats["av"]["savings"] == 0.0 and stats["fc1"]["savings"] == -math.inf
    MPDistributionLogger.clear()
    assert MPDistributionLogger.summary() == {} and "operator" in capsys.readouterr().out


def test_logger_as_context(tmp_path):
    MPDistributionLogger.log_compute(0, 0, "outer", 1, 1)
    logger = MPDistributionLogger()
    with logger as entered:
        assert entered is logger and MPDistributionLogger.stats() == {}
        logger.log_compute(0, 0, "inner", 1, 1)
        with pytest.raises(KeyError), logger:
            assert MPDistributionLogger.stats() == {}
            raise KeyError
        assert list(MPDistributionLogger.stats()) == ["inner"]
    assert list(MPDistributionLogger.stats()) == ["outer"]


def test_contexts_that_overlap():
    """Two threads whose contexts do not nest: both get out with what was there before."""
    MPDistributionLogger.log_compute(0, 0, "outer", 1, 1)
    first, second = MPDistributionLogger(), MPDistributionLogger()
    first.__enter__()
    second.__enter__()
    MPDistributionLogger.log_compute(0, 0, "second", 1, 1)
    first.__exit__()
    assert list(MPDistributionLogger.stats()) == ["second"]
    second.__exit__()
    assert list(MPDistributionLogger.stats()) == ["outer"]


def test_logger_in_threads(tmp_path):
    dumped = []

    def work(i):
        for timestep in range(200):
            MPDistributionLogger.log(timestep, i, "qk", assigned(0, 1), 2)
            MPDistributionLogger.log_compute(timestep, i, "av", 2, 1)
            if timestep % 50 == 0:
                dumped.append(MPDistributionLogger.dump_csv(tmp_path / f"{i}.csv"))

    in_threads(4, work)
    dumped.append(MPDistributionLogger.dump_csv(tmp_path / "rest.csv"))
    assert sum(dumped) == 800
    assert MPDistributionLogger.stats()["av"] == {"baseline": 1600, "actual": 800, "savings": 0.5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0", 0, "qk", assigned(0), 1), "timestep must be an integer or None, got '0'"),
        ((True, 0, "qk", assigned(0), 1), "timestep must be an integer or None, got True"),
        ((0, 0.5, "qk", assigned(0), 1), "block_idx must be an integer or None, got 0.5"),
        ((0, 0, None, assigned(0), 1), "operator must be a str, got None"),
        ((0, 0, "qk", None, 1), "assignment.level_row_indices must be a dict, got None"),
        ((0, 0, "qk", assigned(0), -1), "total_rows must be an integer >= 0, got -1"),
    ],
)
def test_log_arguments(arguments, message):
    owner = "MPDistributionLogger.log"
    assert_value_error(lambda: MPDistributionLogger.log(*arguments), f"{owner}: {message}")
    assert MPDistributionLogger.stats() == {}


def test_cost_arguments():
    log = MPDistributionLogger.log_compute
    owner = "MPDistributionLogger.log_compute"
    for baseline, actual, message in (
        (-1, 0, "baseline must be an integer >= 0, got -1"),
        (1, 0.5, "actual must be an integer >= 0, got 0.5"),
    ):
        call = lambda b=baseline, a=actual: log(0, 0, "qk", b, a)  # noqa: E731
        assert_value_error(call, f"{owner}: {message}")
    message = "MPDistributionLogger: max_stoc_len must be an integer >= 1, got 0"
    assert_value_error(lambda: MPDistributionLogger.summary(0), message)


# MetricProfiler


def test_profiler_is_off_at_first():
    code = (
        "from scmp_kernels.mp import MetricProfiler as m\n"
        "m.record(None, None, None, None)\nassert m.stats() == []\n"
        "m.enable()\ntry: m.record(None, 0, 0, 'qk')\nexcept ValueError: print('on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "on\n"


def recorded(metric):
    with MetricProfiler():
        MetricProfiler.record(metric, 0, 0, "qk")
    return MetricProfiler.stats()[-1]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 100, 101, 1000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_statistics(count, dtype):
    metric = randn(count, seed=count).to(dtype)
    row = recorded(metric)
    values = metric.double().numpy()
    assert (row["N"], row["min"], row["max"]) == (count, values.min(), values.max())
    assert row["mean"] == pytest.approx(values.mean(), rel=1e-12, abs=1e-15)
    if count == 1:
        assert math.isnan(row["std"])
    else:
        assert row["std"] == pytest.approx(values.std(ddof=1), rel=1e-12)
    for percent in (25, 75, 95, 99):
        expected = np.quantile(values, percent / 100)
        assert row[f"q{percent}"] == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_more_values_than_quantile_takes():
    count = 2**24 + 1
    with threads(1):
        row = recorded(torch.arange(count, dtype=torch.int32).flip(0))
    assert row["N"] == count and (row["min"], row["max"]) == (0, count - 1)
    assert row["mean"] == (count - 1) / 2
    quantiles = [row[name] for name in ("q25", "q75", "q95", "q99")]
    assert quantiles == pytest.approx([f * (count - 1) for f in (0.25, 0.75, 0.95, 0.99)])


def test_metrics_of_other_shapes_and_values():
    assert recorded(torch.tensor(2.5, requires_grad=True))["mean"] == 2.5
    assert recorded(randn(2, 3, 4).transpose(0, 2))["N"] == 24
    assert recorded(torch.tensor([True, False]))["mean"] == 0.5
    for metric in (torch.empty(0), torch.tensor([1.0, math.nan, 2.0])):
        row = recorded(metric)
        assert row["N"] == metric.numel()
        names = ("mean", "std", "min", "max", "q25", "q75", "q95", "q99")
        assert all(math.isnan(row[name]) for name in names)
    row = recorded(torch.tensor([1.0, math.inf, math.inf]))
    assert (row["min"], row["max"], row["mean"]) == (1, math.inf, math.inf)
    assert (row["q25"], row["q75"], row["q99"]) == (math.inf,) * 3


def test_profiler_csv(tmp_path, monkeypatch):
    with MetricProfiler():
        MetricProfiler.record(torch.tensor([1.0, 2.0, 3.0, 4.0]), 5, 2, "qk")
        set_current_block_idx(3)
        MetricProfiler.record(torch.tensor([0.5]), None, None, "av")
    path = tmp_path / "new" / "metric.csv"
    assert MetricProfiler.dump_csv(path) == 2
    header, first, second = read(path)
    assert header == "timestep,block,operator,N,mean,std,min,max,q25,q75,q95,q99".split(",")
    assert first[:5] == ["5", "2", "qk", "4", "2.5"] and first[6:10] == [
        "1.0",
        "4.0",
        "1.75",
        "3.25",
    ]
    assert second == ["", "3", "av", "1", "0.5", "nan"] + ["0.5"] * 6
    assert list(MetricProfiler.stats()[0]) == header
    monkeypatch.chdir(tmp_path)
    assert MetricProfiler.dump_csv() == 2
    MetricProfiler.clear()
    MetricProfiler.dump_csv()
    assert read("profile_metric_sigma.csv") == [header]


def is_on():
    before = len(MetricProfiler.stats())
    MetricProfiler.record(torch.ones(1), 0, 0, "qk")
    return len(MetricProfiler.stats()) > before


def test_profiler_switch():
    assert not is_on()
    with MetricProfiler() as profiler:
        assert isinstance(profiler, MetricProfiler) and is_on()
        with profiler:
            MetricProfiler.disable()
            assert not is_on()
        assert is_on()
    assert not is_on()
    MetricProfiler.enable()
    with pytest.raises(KeyError), MetricProfiler():
        raise KeyError
    assert is_on()
    MetricProfiler.disable()
    assert not is_on()


def test_profiler_contexts_that_overlap():
    first, second = MetricProfiler(), MetricProfiler()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert is_on()
    second.__exit__()
    assert not is_on()


def test_profiler_in_threads():
    def work(i):
        for timestep in range(100):
            with MetricProfiler():
                MetricProfiler.record(torch.full((3,), float(i)), timestep, i, "qk")

    in_threads(4, work)
    rows = MetricProfiler.stats()
    assert sorted((row["block"], row["timestep"]) for row in rows) == [
        (i, timestep) for i in range(4) for timestep in range(100)
    ]
    assert all(row["mean"] == row["block"] for row in rows) and not is_on()


def test_record_arguments():
    MetricProfiler.enable()
    for arguments, message in (
        (([1.0], 0, 0, "qk"), "metric must be a real tensor, got [1.0]"),
        (
            (torch.ones(1, dtype=torch.complex64), 0, 0, "qk"),
            "metric must be a real tensor, got torch.complex64",
        ),
        ((torch.ones(1), 0.5, 0, "qk"), "timestep must be an integer or None, got 0.5"),
        ((torch.ones(1), 0, "0", "qk"), "block_idx must be an integer or None, got '0'"),
        ((torch.ones(1), 0, 0, 3), "operator must be a str, got 3"),
    ):
        call = lambda arguments=arguments: MetricProfiler.record(*arguments)  # noqa: E731
        assert_value_error(call, f"MetricProfiler.record: {message}")
    assert MetricProfiler.stats() == []


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_instruments_do_not_wait_for_the_device():
    metric = randn(1000).cuda()
    assignment = RowAssignment.from_levels(torch.arange(3, device="cuda"), [64, 32, 0])
    MetricProfiler.enable()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        MetricProfiler.record(metric, 0, 0, "qk")
        MPDistributionLogger.log(0, 0, "qk", assignment, 3)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert MPDistributionLogger.stats()["qk"]["actual"] == 96
    cuda = MetricProfiler.stats()[0]
    for name, value in recorded(metric.cpu()).items():
        assert cuda[name] == (pytest.approx(value, rel=1e-12) if name != "operator" else value)


# Pictures


def test_plots_need_matplotlib(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for kind in (MPDistributionLogger, MetricProfiler):
        with pytest.raises(ImportError, match=f"^{kind.__name__}.plot needs matplotlib: pip "):
            kind.plot()


def test_distribution_plot(tmp_path):
    pytest.importorskip("matplotlib")
    for timestep in range(2):
        MPDistributionLogger.log(timestep, 1, "qk", assigned(0, 1, 2, 2), 4)
        MPDistributionLogger.log(timestep, 0, "qk", assigned(0, 0), 2)
        MPDistributionLogger.log(timestep, None, "av", assigned(0, 1, levels=(128, 64)), 2)
    path = tmp_path / "new" / "levels.png"
    figure = MPDistributionLogger.plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")
    qk, av = figure.axes
    assert (qk.get_title(), av.get_title()) == ("qk", "av")
    assert [label.get_text() for label in qk.get_xticklabels()] == ["0", "1"]
    assert [label.get_text() for label in av.get_xticklabels()] == ["-"]
    heights = [[bar.get_height() for bar in bars] for bars in qk.containers]
    assert heights == [[0, 0], [1, 0.25], [0, 0.25], [0, 0.5]]
    bottoms = [[bar.get_y() for bar in bars] for bars in qk.containers]
    assert bottoms == [[0, 0], [0, 0], [1, 0.25], [1, 0.5]]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [f"stoc_len {length}" for length in (128, 64, 32, 0)]
    assert MPDistributionLogger.dump_csv(tmp_path / "levels.csv") == 6


def test_metric_plot(tmp_path):
    pytest.importorskip("matplotlib")
    MetricProfiler.enable()
    for timestep in range(3):
        for block in (2, 0):
            MetricProfiler.record(randn(50, seed=timestep), timestep, block, "qk")
    MetricProfiler.record(torch.empty(0), 0, 0, "empty")
    figure = MetricProfiler.plot(tmp_path / "metric.svg")
    assert (tmp_path / "metric.svg").exists()
    (qk,) = figure.axes
    assert qk.get_title() == "qk"
    assert [label.get_text() for label in qk.get_xticklabels()] == ["0", "2"]


def test_nothing_to_draw():
    pytest.importorskip("matplotlib")
    for kind in (MPDistributionLogger, MetricProfiler):
        message = f"{kind.__name__}.plot: there must be entries to draw, got none"
        assert_value_error(kind.plot, message)
