"""Mixed-precision configs: what they accept, threshold tables, JSON files, row assignments."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import GOLDEN, assert_value_error

from scmp_kernels import mp
from scmp_kernels.mp import AdaptiveMPConfig, MPConfig, RangeMPConfig, RowAssignment

TABLE = {
    "stoc_len_levels": [128, 64, 32],
    "timestep_buckets": 2,
    "layer_buckets": 3,
    "operator_defaults": {"qk": {"thresholds": [0.6, 0.2], "loss": 0.1}, "fc1": [0.5, 0]},
    "buckets": {
        "qk:t0:l1": {"thresholds": [0.8, 0.4], "rows": 7},
        "a:b:t1:l2": {"thresholds": [1, 1]},
    },
    "made_by": "a calibrator",
}
LEVELS = [128, 64, 32]


def write(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def golden_cases(kind):
    path = GOLDEN / "mp_public.json"
    if not path.exists():
        return []
    return [case for case in json.loads(path.read_text()) if case["fn"] == kind]


needs_golden = pytest.mark.skipif(
    not (GOLDEN / "mp_public.json").exists(), reason="no golden files here"
)


def test_both_modules_export_the_same_objects():
    names = set(mp.config.__all__)
    assert names <= set(mp.__all__)
    assert all(getattr(mp, name) is getattr(mp.config, name) for name in names)


def test_importing_needs_no_matplotlib():
    code = "import sys; sys.modules['matplotlib'] = None; import scmp_kernels.mp"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_defaults():
    config = MPConfig([256, 128, 0])
    assert config.level_fractions == [1 / 3] * 3
    metrics = config.qk_metric, config.av_metric, config.mlp_metric
    assert metrics == ("q_row_max", "attn_row_max", "x_row_max")
    config = AdaptiveMPConfig([128, 64])
    assert config.enable_pruning is True and config.threshold_table_path is None
    assert (config.timestep_buckets, config.layer_buckets) == (1, 1)
    assert config.operator_default_thresholds == {} == config.bucket_thresholds
    assert config.target_fractions is None
    config = RangeMPConfig([128, 64])
    assert config.base_threshold == 0.3 and config.operator_thresholds == {}


def test_numbers_of_any_kind():
    config = MPConfig(np.array([64, 32]), torch.tensor([0.25, 0.75]))
    assert config == MPConfig((64, np.int64(32)), [np.float32(0.25), 0.75])
    assert type(config.stoc_len_levels) is list and type(config.stoc_len_levels[0]) is int
    assert RangeMPConfig([2, 1], 1).base_threshold == 1.0
    assert MPConfig([64, 32], [1, 0]).level_fractions == [1.0, 0.0]


def test_arguments_are_not_shared():
    levels, thresholds = [64, 0], {"qk": [0.5]}
    config = AdaptiveMPConfig(levels, operator_default_thresholds=thresholds, enable_pruning=True)
    config.get_thresholds(0, 1, "qk").append(1)
    thresholds["qk"].append(1)
    levels.append(3)
    assert config.operator_default_thresholds == {"qk": [0.5]} and config.stoc_len_levels == [64, 0]
    assert (
        RangeMPConfig([2, 1]).operator_thresholds is not RangeMPConfig([2, 1]).operator_thresholds
    )


LEVEL_ERRORS = [
    (128, " must be a list of stream lengths, got 128"),
    ("64", " must be a list of stream lengths, got '64'"),
    ([64, 64], " must be strictly descending, got [64, 64]"),
    ([32, 64], " must be strictly descending, got [32, 64]"),
    ([64, -1], "[1] must be an integer in [0, 2147483647], got -1"),
    ([2**31, 1], "[0] must be an integer in [0, 2147483647], got 2147483648"),
    ([64.0, 32], "[0] must be an integer in [0, 2147483647], got 64.0"),
    ([True, 0], "[0] must be an integer in [0, 2147483647], got True"),
]


@pytest.mark.parametrize(("levels", "message"), LEVEL_ERRORS)
@pytest.mark.parametrize("kind", [MPConfig, AdaptiveMPConfig, RangeMPConfig])
def test_levels(kind, levels, message):
    assert_value_error(lambda: kind(levels), f"{kind.__name__}: stoc_len_levels{message}")


def test_number_of_levels():
    MPConfig([64])
    message = "MPConfig: stoc_len_levels must have at least 1 level, got []"
    assert_value_error(lambda: MPConfig([]), message)
    for kind in (AdaptiveMPConfig, RangeMPConfig):
        message = f"{kind.__name__}: stoc_len_levels must have at least 2 levels, got [64]"
        assert_value_error(lambda kind=kind: kind([64]), message)


SUM = "must have a sum within 0.001 of 1, got"
FRACTION_ERRORS = [
    (0.5, " must be a list of numbers in [0, 1], got 0.5"),
    ([1.0], " must have one entry per level, 2 here, got 1"),
    ([0.5, 0.6], f" {SUM} [0.5, 0.6]"),
    ([0.5, 0.4], f" {SUM} [0.5, 0.4]"),
    ([1.5, -0.5], "[0] must be a number in [0, 1], got 1.5"),
    ([math.nan, 1], "[0] must be a number in [0, 1], got nan"),
    (["1", 0], "[0] must be a number in [0, 1], got '1'"),
    ([True, 0], "[0] must be a number in [0, 1], got True"),
]


@pytest.mark.parametrize(("fractions", "message"), FRACTION_ERRORS)
def test_fractions(fractions, message):
    assert_value_error(lambda: MPConfig([64, 32], fractions), f"MPConfig: level_fractions{message}")
    assert_value_error(
        lambda: AdaptiveMPConfig([64, 32], target_fractions=fractions),
        f"AdaptiveMPConfig: target_fractions{message}",
    )


def test_fractions_are_used_as_given():
    assert MPConfig([64, 32], [0.5, 0.5009]).level_fractions == [0.5, 0.5009]


@pytest.mark.parametrize("name", ["qk_metric", "av_metric", "mlp_metric"])
def test_metrics(name):
    default = {"qk_metric": "q_row_max", "av_metric": "attn_row_max", "mlp_metric": "x_row_max"}[
        name
    ]
    for metric in (default, "amax", "l2", "crest"):
        assert getattr(MPConfig([64], **{name: metric}), name) == metric
    for metric in ("row_max", "", None, 3, "q_row_max" if name != "qk_metric" else "x_row_max"):
        assert_value_error(
            lambda metric=metric: MPConfig([64], **{name: metric}),
            f"MPConfig: {name} must be one of {default}, amax, l2, crest, got {metric!r}",
        )


def test_pruning_is_switched_off_first():
    config = AdaptiveMPConfig(
        [64, 32, 0],
        enable_pruning=False,
        operator_default_thresholds={"qk": [0.5]},
        target_fractions=[0.5, 0.5],
    )
    assert config.stoc_len_levels == [64, 32]
    assert AdaptiveMPConfig([64, 32], enable_pruning=False).stoc_len_levels == [64, 32]
    assert_value_error(
        lambda: AdaptiveMPConfig([64, 0], enable_pruning=False),
        "AdaptiveMPConfig: stoc_len_levels must have at least 2 levels, got [64]",
    )
    assert_value_error(
        lambda: AdaptiveMPConfig([64, 32, 0], False, target_fractions=[0.5, 0.5, 0]),
        "AdaptiveMPConfig: target_fractions must have one entry per level, 2 here, got 3",
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"enable_pruning": 1}, "enable_pruning must be True or False, got 1"),
        ({"timestep_buckets": 0}, "timestep_buckets must be an integer >= 1, got 0"),
        ({"layer_buckets": 1.5}, "layer_buckets must be an integer >= 1, got 1.5"),
        ({"threshold_table_path": 3}, "threshold_table_path must be a path or None, got 3"),
        (
            {"operator_default_thresholds": [0.5]},
            "operator_default_thresholds must be a dict, got [0.5]",
        ),
        (
            {"operator_default_thresholds": {3: [0.5, 0.1]}},
            "a key of operator_default_thresholds must be a str, got 3",
        ),
        (
            {"operator_default_thresholds": {"qk": [0.5]}},
            "operator_default_thresholds['qk'] must have one entry fewer than levels, 2 here, "
            "got 1",
        ),
        (
            {"operator_default_thresholds": {"qk": [0.1, 0.5]}},
            "operator_default_thresholds['qk'] must be non-increasing, got [0.1, 0.5]",
        ),
        (
            {"operator_default_thresholds": {"qk": [1.1, 0.5]}},
            "operator_default_thresholds['qk'][0] must be a number in [0, 1], got 1.1",
        ),
        (
            {"bucket_thresholds": {"qk:t0:l0": [0.5, 0.1]}},
            "bucket_thresholds must have keys (operator, t, l), got 'qk:t0:l0'",
        ),
        (
            {"bucket_thresholds": {("qk", 1, 0): [0.5, 0.1]}},
            "the timestep bucket of bucket_thresholds[('qk', 1, 0)] must be an integer in [0, 0], "
            "got 1",
        ),
        (
            {"bucket_thresholds": {("qk", 0, -1): [0.5, 0.1]}},
            "the layer bucket of bucket_thresholds[('qk', 0, -1)] must be an integer in [0, 0], "
            "got -1",
        ),
        (
            {"bucket_thresholds": {("qk", 0, 0): [0.1, 0.5]}},
            "bucket_thresholds[('qk', 0, 0)] must be non-increasing, got [0.1, 0.5]",
        ),
    ],
)
def test_adaptive_fields(fields, message):
    assert_value_error(lambda: AdaptiveMPConfig(LEVELS, **fields), f"AdaptiveMPConfig: {message}")


def test_range_config():
    config = RangeMPConfig([64, 32], 0.25, {"proj": 0.5})
    thresholds = [config.get_threshold(name) for name in (None, "qk", "proj")]
    assert thresholds == [0.25, 0.25, 0.5] and config.get_threshold() == 0.25
    for fields, message in (
        ({"base_threshold": -0.1}, "base_threshold must be a number in [0, 1], got -0.1"),
        ({"base_threshold": None}, "base_threshold must be a number in [0, 1], got None"),
        ({"operator_thresholds": 3}, "operator_thresholds must be a dict, got 3"),
        ({"operator_thresholds": {1: 1}}, "a key of operator_thresholds must be a str, got 1"),
        (
            {"operator_thresholds": {"qk": 2}},
            "operator_thresholds['qk'] must be a number in [0, 1], got 2",
        ),
    ):
        call = lambda fields=fields: RangeMPConfig([64, 32], **fields)  # noqa: E731
        assert_value_error(call, f"RangeMPConfig: {message}")
    message = "RangeMPConfig.get_threshold: operator must be a str, got 3"
    assert_value_error(lambda: config.get_threshold(3), message)


# Threshold tables


def test_load_table(tmp_path):
    path = write(tmp_path / "table.json", TABLE)
    config = AdaptiveMPConfig(LEVELS, threshold_table_path=path)
    assert (config.timestep_buckets, config.layer_buckets) == (2, 3)
    assert config.operator_default_thresholds == {"qk": [0.6, 0.2], "fc1": [0.5, 0.0]}
    assert config.bucket_thresholds == {("qk", 0, 1): [0.8, 0.4], ("a:b", 1, 2): [1.0, 1.0]}
    assert config.threshold_table_path == str(path)
    other = AdaptiveMPConfig(LEVELS, threshold_table_path=str(path))
    assert other == config


def test_loading_replaces(tmp_path):
    config = AdaptiveMPConfig(
        LEVELS,
        timestep_buckets=5,
        layer_buckets=6,
        operator_default_thresholds={"av": [0.5, 0.1]},
        bucket_thresholds={("av", 4, 5): [0.5, 0.1]},
        target_fractions=[1, 0, 0],
    )
    config.load_threshold_table(write(tmp_path / "table.json", {"stoc_len_levels": LEVELS}))
    assert config == AdaptiveMPConfig(LEVELS, target_fractions=[1, 0, 0])


def changed(**keys):
    return {**TABLE, **keys}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "must be a JSON file: Expecting value: line 1 column 1 (char 0)"),
        ([1], "must hold a JSON object, got [1]"),
        ({"buckets": {}}, "must have the key 'stoc_len_levels', got ['buckets']"),
        (
            changed(stoc_len_levels=[128, 64]),
            "stoc_len_levels must be those of the config, [128, 64, 32], got [128, 64]",
        ),
        (
            changed(stoc_len_levels=[128, 64, 32.0]),
            "stoc_len_levels[2] must be an integer in [0, 2147483647], got 32.0",
        ),
        (
            changed(stoc_len_levels=None),
            "stoc_len_levels must be a list of stream lengths, got None",
        ),
        (changed(timestep_buckets=0), "timestep_buckets must be an integer >= 1, got 0"),
        (changed(layer_buckets=None), "layer_buckets must be an integer >= 1, got None"),
        (changed(operator_defaults=[]), "operator_defaults must be a dict, got []"),
        (
            changed(operator_defaults={"qk": {"threshold": [1, 0]}}),
            "operator_defaults['qk'] must have the key 'thresholds', got {'threshold': [1, 0]}",
        ),
        (changed(operator_defaults={"qk": 3}), "operator_defaults['qk'] must be a dict, got 3"),
        (
            changed(operator_defaults={"qk": [0.5]}),
            "operator_defaults['qk'] must have one entry fewer than levels, 2 here, got 1",
        ),
        (
            changed(operator_defaults={"qk": {"thresholds": [0.5, math.nan]}}),
            "operator_defaults['qk'][1] must be a number in [0, 1], got nan",
        ),
        (changed(buckets=None), "buckets must be a dict, got None"),
        (changed(buckets={"qk:t0": {}}), "buckets must have keys op:t<i>:l<j>, got 'qk:t0'"),
        (
            changed(buckets={"qk:t00:l0": {}}),
            "buckets must have keys op:t<i>:l<j>, got 'qk:t00:l0'",
        ),
        (changed(buckets={"qk:t0:l0": [1, 0]}), "buckets['qk:t0:l0'] must be a dict, got [1, 0]"),
        (
            changed(buckets={"qk:t0:l0": {}}),
            "buckets['qk:t0:l0'] must have the key 'thresholds', got {}",
        ),
        (
            changed(buckets={"qk:t2:l0": {"thresholds": [1, 0]}}),
            "the timestep bucket of buckets['qk:t2:l0'] must be an integer in [0, 1], got 2",
        ),
        (
            changed(buckets={"qk:t0:l3": {"thresholds": [1, 0]}}),
            "the layer bucket of buckets['qk:t0:l3'] must be an integer in [0, 2], got 3",
        ),
        (
            changed(buckets={"qk:t0:l0": {"thresholds": [0, 1]}}),
            "buckets['qk:t0:l0'] must be non-increasing, got [0.0, 1.0]",
        ),
    ],
)
def test_malformed_table(tmp_path, table, message):
    path = write(tmp_path / "table.json", table)
    config = AdaptiveMPConfig(LEVELS, operator_default_thresholds={"qk": [0.5, 0.1]})
    before = repr(config)
    owner = "AdaptiveMPConfig.load_threshold_table"
    assert_value_error(lambda: config.load_threshold_table(path), f"{owner}: {path}: {message}")
    assert repr(config) == before
    assert_value_error(
        lambda: AdaptiveMPConfig(LEVELS, threshold_table_path=path),
        f"AdaptiveMPConfig: {path}: {message}",
    )


def test_table_of_the_levels_left(tmp_path):
    path = write(tmp_path / "table.json", {"stoc_len_levels": [64, 32, 0]})
    AdaptiveMPConfig([64, 32, 0], threshold_table_path=path)
    with pytest.raises(ValueError, match=r"must be those of the config, \[64, 32\], got"):
        AdaptiveMPConfig([64, 32, 0], False, threshold_table_path=path)


def test_missing_table(tmp_path):
    with pytest.raises(OSError, match="nothing.json"):
        AdaptiveMPConfig(LEVELS, threshold_table_path=tmp_path / "nothing.json")


def bucketed(timestep_buckets, layer_buckets):
    """A config whose only threshold says which bucket it is from; 1 is the default."""
    count = timestep_buckets * layer_buckets
    buckets = {
        ("qk", t, j): [(t * layer_buckets + j) / (count + 1)]
        for t in range(timestep_buckets)
        for j in range(layer_buckets)
    }
    return AdaptiveMPConfig(
        [64, 32],
        timestep_buckets=timestep_buckets,
        layer_buckets=layer_buckets,
        operator_default_thresholds={"qk": [1], "av": [1]},
        bucket_thresholds=buckets,
    )


@given(
    buckets=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    at=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    total=st.tuples(st.integers(-1, 50), st.integers(-1, 50)),
)
def test_buckets(buckets, at, total):
    indices = [
        0 if n <= 1 or steps <= 1 else min(n - 1, int(np.float64(k) / np.float64(steps - 1) * n))
        for n, k, steps in zip(buckets, at, total, strict=True)
    ]
    expected = (indices[0] * buckets[1] + indices[1]) / (buckets[0] * buckets[1] + 1)
    config = bucketed(*buckets)
    assert config.get_thresholds(at[0], total[0], "qk", at[1], total[1]) == [expected]
    assert config.get_thresholds(at[0], total[0], "av", at[1], total[1]) == [1]
    assert config.get_thresholds(at[0], total[0], "qk", at[1]) == [1]
    assert config.get_thresholds(at[0], total[0], "qk", total_blocks=total[1]) == [1]


def test_bucket_without_default():
    config = AdaptiveMPConfig([64, 32], layer_buckets=2, bucket_thresholds={("qk", 0, 0): [0.5]})
    assert config.get_thresholds(0, 1, "qk", 0, 8) == [0.5]
    rule = "operator must have thresholds in the bucket or be one with a default (none), got"
    for operator, block in (("qk", 7), ("av", 0), (None, 0)):
        assert_value_error(
            lambda operator=operator, block=block: config.get_thresholds(0, 1, operator, block, 8),
            f"AdaptiveMPConfig.get_thresholds: {rule} {operator!r}",
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 10, "qk"), "timestep must be an integer >= 0, got -1"),
        ((-1, 1, "qk"), "timestep must be an integer >= 0, got -1"),
        ((0.5, 10, "qk"), "timestep must be an integer >= 0, got 0.5"),
        ((0, 1.0, "qk"), "total_timesteps must be an integer, got 1.0"),
        ((0, 10, "qk", -1, 4), "block_idx must be an integer >= 0, got -1"),
        ((0, 10, "qk", -1), "block_idx must be an integer >= 0, got -1"),
        ((0, 10, "qk", 1, "4"), "total_blocks must be an integer, got '4'"),
        ((0, 10, 3), "operator must be a str, got 3"),
    ],
)
def test_bucket_arguments(arguments, message):
    config = bucketed(2, 2)
    call = lambda: config.get_thresholds(*arguments)  # noqa: E731
    assert_value_error(call, f"AdaptiveMPConfig.get_thresholds: {message}")


# JSON files


@pytest.mark.parametrize(
    "config",
    [
        MPConfig([256, 128, 0], [0.1, 0.2, 0.7], qk_metric="crest"),
        MPConfig([64] + list(range(13, 0, -1))),
        AdaptiveMPConfig([64, 32, 0], enable_pruning=False, target_fractions=[1 / 3, 2 / 3]),
        AdaptiveMPConfig(
            LEVELS,
            timestep_buckets=2,
            layer_buckets=3,
            operator_default_thresholds={"é": [0.1 + 0.2, 0.1]},
            bucket_thresholds={("qk", 0, 1): [1, 0], ("a:t0:l0", 1, 2): [0.7, 0.7]},
        ),
        RangeMPConfig([64, 32], 0.1, {"proj": 1 / 3}),
    ],
    ids=lambda config: type(config).__name__,
)
def test_json_round_trip(tmp_path, config):
    path = config.to_json(tmp_path / "new" / "config.json")
    assert path == tmp_path / "new" / "config.json"
    again = type(config).from_json(str(path))
    assert again == config and repr(again) == repr(config)


def test_json_holds_the_table(tmp_path):
    """What was loaded comes back even if the table is gone."""
    table = write(tmp_path / "table.json", TABLE)
    config = AdaptiveMPConfig(LEVELS, threshold_table_path=table)
    path = config.to_json(tmp_path / "config.json")
    table.unlink()
    assert AdaptiveMPConfig.from_json(path) == config


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (MPConfig, "{", "must be a JSON file: Expecting property name enclosed in double quotes"),
        (MPConfig, {}, "must have the key 'stoc_len_levels', got []"),
        (
            RangeMPConfig,
            {"stoc_len_levels": [2, 1], "x": 1},
            "may have the keys stoc_len_levels, base_threshold, operator_thresholds, got 'x'",
        ),
        (
            MPConfig,
            {"stoc_len_levels": [1, 2]},
            "stoc_len_levels must be strictly descending, got [1, 2]",
        ),
        (
            AdaptiveMPConfig,
            {"stoc_len_levels": [2, 1], "bucket_thresholds": {"qk": [1]}},
            "bucket_thresholds must have keys op:t<i>:l<j>, got 'qk'",
        ),
        (
            AdaptiveMPConfig,
            {"stoc_len_levels": [2, 1], "bucket_thresholds": [1]},
            "bucket_thresholds must be a dict, got [1]",
        ),
        (
            AdaptiveMPConfig,
            {"stoc_len_levels": [2, 1], "threshold_table_path": 3},
            "threshold_table_path must be a path or None, got 3",
        ),
    ],
)
def test_malformed_json(tmp_path, kind, content, message):
    path = write(tmp_path / "config.json", content)
    with pytest.raises(ValueError) as caught:
        kind.from_json(path)
    text = str(caught.value)
    assert text.startswith(f"{kind.__name__}.from_json: {path}: {message}") and "\n" not in text


def test_json_left_out_is_default(tmp_path):
    path = write(tmp_path / "config.json", {"stoc_len_levels": [2, 1]})
    for kind in (MPConfig, AdaptiveMPConfig, RangeMPConfig):
        assert kind.from_json(path) == kind([2, 1])
    with pytest.raises(OSError):
        MPConfig.from_json(tmp_path / "nothing.json")


# Row assignments


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


def check_assignment(assignment, row_levels, indices):
    assert assignment.row_levels.tolist() == row_levels
    found = assignment.level_row_indices
    assert list(found) == list(indices)
    assert {level: rows.tolist() for level, rows in found.items()} == indices
    assert all(rows.dtype == torch.int64 for rows in found.values())
    lengths = assignment.row_stoc_len
    assert lengths.dtype == torch.int32
    assert lengths.tolist() == [list(indices)[i] for i in row_levels]
    assert assignment.level_counts().tolist() == [len(rows) for rows in indices.values()]
    assert assignment.stoc_len_levels == list(indices)


def test_assignment_from_a_dict():
    rows = {64: ints(3, 0), 32: ints(), 0: ints(1, 2)}
    assignment = RowAssignment(level_row_indices=rows, row_levels=ints(0, 2, 2, 0))
    check_assignment(assignment, [0, 2, 2, 0], {64: [3, 0], 32: [], 0: [1, 2]})
    assert repr(assignment) == "RowAssignment(4 rows, stoc_len_levels=[64, 32, 0])"


def test_assignment_builds_its_dict_when_asked():
    assignment = RowAssignment.from_levels(ints(2, 0, 2, 0, 0), (64, 32, 0))
    assert assignment._indices is None
    check_assignment(assignment, [2, 0, 2, 0, 0], {64: [1, 3, 4], 32: [], 0: [0, 2]})
    assert assignment.level_row_indices is assignment.level_row_indices
    assert assignment.row_stoc_len is assignment.row_stoc_len
    ordered = RowAssignment.from_levels(ints(2, 0, 2, 0, 0), [64, 32, 0], ints(4, 1, 3, 2, 0))
    check_assignment(ordered, [2, 0, 2, 0, 0], {64: [4, 1, 3], 32: [], 0: [2, 0]})


def test_empty_assignment():
    check_assignment(RowAssignment.from_levels(ints(), [64, 0]), [], {64: [], 0: []})
    check_assignment(RowAssignment(ints(), {64: ints()}), [], {64: []})


@pytest.mark.parametrize(
    ("row_levels", "rows", "message"),
    [
        ([0], {64: ints(0)}, "row_levels must be a 1D int64 tensor, got [0]"),
        (
            torch.zeros(1),
            {64: ints(0)},
            "row_levels must be a 1D int64 tensor, got torch.float32 of shape (1,)",
        ),
        (ints(0), [ints(0)], "level_row_indices must be a dict, got [tensor([0])]"),
        (ints(0), {64: [0]}, "level_row_indices[64] must be a 1D int64 tensor, got [0]"),
        (ints(), {}, "level_row_indices must have at least 1 level, got []"),
        (
            ints(0),
            {32: ints(), 64: ints(0)},
            "level_row_indices must be strictly descending, got [32, 64]",
        ),
        (ints(1), {64: ints(0)}, "row_levels must be in [0, 0], got 1"),
        (ints(-1), {64: ints(0)}, "row_levels must be in [0, 0], got -1"),
        (ints(0, 0), {64: ints(0)}, "level_row_indices must have 2 rows as row_levels has, got 1"),
        (
            ints(0, 0),
            {64: ints(0, 0)},
            "level_row_indices must have every row once, got {64: tensor([0, 0])}",
        ),
        (
            ints(0, 1),
            {64: ints(1), 32: ints(0)},
            "level_row_indices[64] must have the rows of level 0 in row_levels, got [1]",
        ),
    ],
)
def test_assignment_arguments(row_levels, rows, message):
    assert_value_error(lambda: RowAssignment(row_levels, rows), f"RowAssignment: {message}")


def test_lazy_assignment_arguments():
    for arguments, message in (
        ((ints(2), [64, 32]), "row_levels must be in [0, 1], got 2"),
        ((ints(0), []), "stoc_len_levels must have at least 1 level, got []"),
        ((ints(0), [64], ints()), "order must have 1 rows as row_levels has, got 0"),
        ((ints(0), [64], [0]), "order must be a 1D int64 tensor, got [0]"),
    ):
        call = lambda arguments=arguments: RowAssignment.from_levels(*arguments)  # noqa: E731
        assert_value_error(call, f"RowAssignment: {message}")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_assignment_does_not_wait_for_the_device():
    row_levels = torch.tensor([2, 0, 7, 1], device="cuda")
    assignment = RowAssignment.from_levels(row_levels, [64, 32, 0])
    lengths = torch.tensor([0, 64, -1, 32], dtype=torch.int32)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found, counts = assignment.row_stoc_len, assignment.level_counts()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert torch.equal(found.cpu(), lengths) and counts.tolist() == [1, 1, 1]


# Golden data: the configs' part; the classification itself is as SPEC 9 in numpy


@needs_golden
def test_golden_fractions():
    cases = golden_cases("classify_rows_by_metric")
    assert cases
    for case in cases:
        indices = {int(level): rows for level, rows in case["idx"].items()}
        config = MPConfig(case["levels"], case["fractions"])
        assert config.level_fractions == case["fractions"]
        tensors = {level: ints(*rows) for level, rows in indices.items()}
        row_levels = ints(*case["row_levels"])
        check_assignment(RowAssignment(row_levels, tensors), case["row_levels"], indices)
        order = torch.cat(list(tensors.values()))
        lazy = RowAssignment.from_levels(row_levels, config.stoc_len_levels, order)
        check_assignment(lazy, case["row_levels"], indices)


@needs_golden
def test_golden_thresholds(tmp_path):
    cases = golden_cases("adaptive:table")
    assert cases
    for case in cases:
        config = AdaptiveMPConfig(case["levels"])
        config.load_threshold_table(write(tmp_path / "table.json", case["table"]))
        thresholds = np.array(config.get_thresholds(**case["args"]), np.float32)
        metric = np.array(case["metric"], np.float32)
        span = metric.max() - metric.min()
        levels = [0] * len(metric)
        if span >= 1e-8:
            below = ((metric - metric.min()) / span)[:, None] < thresholds
            levels = below.sum(axis=1).tolist()  # thresholds do not increase
        assert levels == case["row_levels"]


@needs_golden
def test_golden_groups():
    cases = golden_cases("classify_groups_by_range")
    assert cases
    for case in cases:
        config = RangeMPConfig(case["levels"], case["base_threshold"], case["operator_thresholds"])
        weight = np.array(case["weight"], np.float32)
        size, n = case["group_size"], len(config.stoc_len_levels)
        if not 0 < size < len(weight):
            size = len(weight)
        groups = weight.reshape(len(weight) // size, -1)
        span = groups.max(axis=1) - groups.min(axis=1)
        norm = (span - span.min()) / (span.max() - span.min() + np.float32(1e-8))
        threshold = min(config.get_threshold(case["operator"]), 0.95)
        bounds = np.array([threshold * (n - 1 - k) / (n - 1) for k in range(n - 1)], np.float32)
        found = (norm[:, None] < bounds).sum(axis=1)
        assert [config.stoc_len_levels[level] for level in found] == case["out"]
