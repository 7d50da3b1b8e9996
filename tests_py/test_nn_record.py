"""record_products: what a converted model records, and the table that comes of it."""

import pytest
import torch
from nn_cases import IMAGES, by_hand, model, nothing_left  # noqa: F401
from support import assert_same_bits, assert_value_error
from torch import nn

from scmp_kernels import SCConfig, calibrate_smoothquant, convert, mp, revert
from scmp_kernels.mp.calls import normalised_metric
from scmp_kernels.nn import record_products

pytestmark = pytest.mark.usefixtures("nothing_left")
LEVELS = [256, 64, 16]
MACS = {"embed": 8 * 48, "head": 10 * 8}  # of a row
for _i in (0, 1):
    MACS |= {f"blocks.{_i}.attention.qkv": 24 * 8, f"blocks.{_i}.attention.out": 8 * 8}
    MACS |= {f"blocks.{_i}.attention.qk": 4 * 4, f"blocks.{_i}.attention.av": 4 * 4}


def recorded(m):
    recorder = mp.CalibrationRecorder(LEVELS, sample_rows=None, progress=False)
    with record_products(m, recorder) as inside:
        assert inside is m
        out = m(IMAGES)
    return recorder, out


def test_every_product_is_recorded_and_the_forward_is_float():
    m = convert(model(), SCConfig(stoc_len=16))
    streams = m(IMAGES)
    recorder, out = recorded(m)
    assert {call.operator: int(call.macs[0]) for call in recorder.calls} == MACS
    torch.testing.assert_close(out, by_hand(model(), IMAGES))
    assert_same_bits(m(IMAGES), streams)  # nothing is left of it
    assert all(not layer._forward_hooks for layer in m.modules())


def test_keys_and_errors_are_those_of_the_calls():
    m = convert(model(), SCConfig(chunk_d=4), attention=SCConfig())
    calibrate_smoothquant(m, [IMAGES], progress=False)
    recorder, _ = recorded(m)
    call = next(call for call in recorder.calls if call.operator == "embed")
    rows = m.embed.lowered_rows(IMAGES)
    keys = normalised_metric(mp.compute_row_metric(rows))
    assert (call.keys == keys).all()
    exact, bias = nn.Conv2d.forward(m.embed, IMAGES), m.embed.bias.view(-1, 1, 1)
    for i, level in enumerate(LEVELS):
        m.embed.config = SCConfig(chunk_d=4, stoc_len=level)
        error = (m.embed(IMAGES) - exact).square().sum() / (exact - bias).square().sum()
        assert call.errors[:, i].sum() == pytest.approx(float(error), rel=1e-3)


def test_the_table_converts_the_same_model(tmp_path):
    path = str(tmp_path / "table.json")
    m = convert(model(), SCConfig())
    recorder, exact = recorded(m)
    revert(m)
    mp.calibrate_thresholds(recorder, 128, path=path, progress=False)
    convert(m, SCConfig(mp=mp.AdaptiveMPConfig(LEVELS, threshold_table_path=path)))
    assert (m(IMAGES) - exact).norm() < 0.3 * exact.norm()
    again, _ = recorded(m)  # an mp does not enter
    for before, after in zip(recorder.calls, again.calls, strict=True):
        assert before.operator == after.operator and (before.errors == after.errors).all()


def test_float_modules_and_names_of_their_own():
    chosen = {"embed": False, "head": SCConfig(operator="top")}
    m = convert(model(), SCConfig(), lambda name, _: chosen.get(name, True), attention=False)
    recorder, _ = recorded(m)
    names = {call.operator for call in recorder.calls}
    assert names == {name for name in MACS if name[-3:] in ("qkv", "out")} | {"top"}


def test_convolutions_with_groups_run_in_float_and_are_left_out():
    m = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 6, 1))
    x = torch.randn(2, 4, 7, 7, generator=torch.Generator().manual_seed(1))
    exact = m(x)
    convert(m)
    recorder = mp.CalibrationRecorder(LEVELS, progress=False)
    with record_products(m, recorder), torch.no_grad():
        torch.testing.assert_close(m(x), exact)
    assert [call.operator for call in recorder.calls] == ["1"]
    assert m[0].config.enabled and not m(x).equal(exact)


def test_an_error_inside_leaves_the_model_as_it_was():
    m = convert(model(), SCConfig(granularity="per_tensor"), attention=False)
    out = m(IMAGES)
    with pytest.raises(ValueError, match="per_row"):
        recorded(m)
    assert_same_bits(m(IMAGES), out)


def test_errors():
    recorder = mp.CalibrationRecorder(LEVELS, progress=False)

    def enter(m, recorder=recorder):
        return lambda: record_products(m, recorder).__enter__()

    assert_value_error(
        enter(convert(model(), attention=False), None),
        "record_products: recorder must be a CalibrationRecorder, got None",
    )
    assert_value_error(enter(None), "record_products: model must be a torch.nn.Module, got None")
    assert_value_error(
        enter(model()), "record_products: model must be converted, got nothing on bit streams in it"
    )
    grouped = convert(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)))
    assert_value_error(
        enter(grouped),
        "record_products: model must have more than convolutions with groups on bit streams, whose "
        "rows no config classifies, got '0'",
    )
