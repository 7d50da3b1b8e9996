"""Values of a wrong Python type: a ValueError that names the argument, where Python looks first."""

import pytest
import torch
from support import assert_same_bits, assert_value_error, randn

from scmp_kernels import conv2d_lowered_rows, mp, prepare, quant, sc_matmul
from scmp_kernels.sc import config_helpers
from scmp_kernels.sc.rng import Sobol

A, B = torch.ones(2, 3), torch.ones(4, 3)


@pytest.mark.parametrize("value", ["1.5", None, [1.0], 10**400, torch.ones(2)], ids=repr)
def test_ranges(value):
    for name, call in (
        ("bipolar: abs_max", lambda: quant.fused_quantize_bipolar(A, value, 8)),
        ("unipolar: fp_max", lambda: quant.fused_quantize_unipolar(A, value, 0.0, 8)),
        ("unipolar: fp_min", lambda: quant.fused_quantize_unipolar(A, 1.0, value, 8)),
    ):
        with pytest.raises(ValueError, match=f"^fused_quantize_{name} must be a number in the"):
            call()


def test_a_tensor_of_one_number_is_one():
    x = randn(3, 4)
    expected = quant.fused_quantize_unipolar(x, 2.0, -2.0, 8)
    actual = quant.fused_quantize_unipolar(x, torch.tensor(2.0), torch.tensor(-2.0), 8)
    assert torch.equal(actual[0], expected[0]) and actual[1:] == expected[1:]


def test_what_is_no_tensor():
    for call, message in (
        (lambda: prepare([1]), "prepare: b must be a tensor, got [1]"),
        (
            lambda: prepare(B, smooth_scales="x"),
            "prepare: smooth_scales must be a tensor, got 'x'",
        ),
        (
            lambda: quant._grouped_symmetric_quant(3, 1, 7),
            "_grouped_symmetric_quant: x must be a tensor, got 3",
        ),
    ):
        assert_value_error(call, message)


def test_none_is_no_tensor():
    ops = torch.ops.scmp
    for call, message in (
        (lambda: sc_matmul(None, B), "sc_matmul: a must be a tensor, got None"),
        (lambda: ops.sc_matmul(A, None), "sc_matmul: b must be a tensor, got None"),
        (lambda: ops.sc_conv2d(None, B), "sc_conv2d: x must be a tensor, got None"),
        (
            lambda: ops.sc_conv2d(torch.ones(1, 1, 1), None),
            "sc_conv2d: weight must be a tensor, got None",
        ),
        (
            lambda: ops.apply_smoothing(A, None, A[0]),
            "apply_smoothing: b must be a tensor, got None",
        ),
    ):
        assert_value_error(call, message)


def test_torch_names_the_argument_of_a_call_with_lengths():
    lengths, rungs = torch.tensor([8, 8]), torch.zeros(2, 1, dtype=torch.int64)
    for call, name in (
        (lambda: sc_matmul([1.0], B, stoc_len=lengths), "a"),
        (lambda: sc_matmul(A, B, rung_table=rungs, level_lens=3, chunk_d=3), "level_lens"),
        (lambda: sc_matmul(A, B, halve_bipolar_stoc_len=torch.ones(2)), "halve_bipolar_stoc_len"),
    ):
        with pytest.raises(
            RuntimeError, match=f"Expected a value of type .* for argument '{name}'"
        ):
            call()


def test_lists_of_the_classifier():
    metric = torch.ones(4)
    for levels, fractions, message in (
        (3, [1.0], "stoc_len_levels must be a list of stream lengths, got 3"),
        ([8], None, "level_fractions must be a list of numbers in [0, 1], got None"),
        ([8], ["1"], "level_fractions[0] must be a number in [0, 1], got '1'"),
    ):
        assert_value_error(
            lambda levels=levels, fractions=fractions: mp.classify_rows_by_metric(
                metric, levels, fractions
            ),
            f"classify_rows_by_metric: {message}",
        )


def test_groups_and_seeds():
    for groups in (0, -3, "x"):
        assert_value_error(
            lambda groups=groups: conv2d_lowered_rows(
                torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3), groups=groups
            ),
            f"conv2d_lowered_rows: groups must be an integer of at least 1, got {groups!r}",
        )
    with pytest.raises(ValueError, match="^Sobol: seed must be None or a list of 5 integers"):
        Sobol(5, torch.tensor(3))


def test_a_file_is_named_whatever_is_wrong_with_it(tmp_path):
    path = tmp_path / "c.json"
    rng = '{"type": "lfsr", "seed": null, "taps": [1]}'
    path.write_text(f'{{"config": {{"rng_pool": [{rng}], "sng": {{"q": [], "k": []}}}}}}')
    with pytest.raises(ValueError, match=r"^load_config: .*c\.json: config: rng_pool\[0\] needs"):
        config_helpers.load_config(path)


@pytest.mark.parametrize("name", ["codes", "scales", "_extra_state"])
@pytest.mark.parametrize("value", [3, "x", None, torch.ones(2, device="meta")], ids=repr)
def test_a_load_that_fails_half_way_changes_nothing(name, value):
    a, b = randn(5, 16), randn(6, 16, seed=1)
    prepared, before = prepare(b), sc_matmul(a, b)
    state = prepare(b, sc_prec=6, chunk_d=4).state_dict() | {name: value}
    with pytest.raises((ValueError, RuntimeError), match="Prepared: "):
        prepared.load_state_dict(state)
    assert_same_bits(sc_matmul(a, prepared), before)


@pytest.mark.parametrize("damage", ['"shape": 3', '"config": 3', '"config": "[" '])
def test_a_damaged_spec_is_noticed_before_anything_changes(damage):
    a, b = randn(5, 16), randn(6, 16, seed=1)
    prepared, before = prepare(b), sc_matmul(a, b)
    state = prepare(b, sc_prec=6).state_dict()
    spec = state["_extra_state"]
    state["_extra_state"] = spec[:-1] + "," + damage + "}"
    with pytest.raises(ValueError, match="^Prepared: the extra state must be the spec"):
        prepared.load_state_dict(state)
    assert_same_bits(sc_matmul(a, prepared), before)
