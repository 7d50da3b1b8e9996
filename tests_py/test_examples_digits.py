"""The digits demo, quickly, and its parts: lengths by row, their cost, the small CNN."""

import sys

import pytest
import torch
from support import ROOT, assert_same_bits, randn

from scmp_kernels import sc_matmul

for module in ("matplotlib", "sklearn", "tqdm"):
    pytest.importorskip(module)


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    """The examples import each other by name."""
    monkeypatch.syspath_prepend(ROOT / "examples")


def test_every_row_has_the_bits_of_the_uniform_call_at_its_length():
    from digits_mixed import MixedMatmul, split_rows

    a, b = randn(2, 6, 16), randn(2, 5, 16, seed=1)
    matmul = MixedMatmul("", [split_rows(16)])
    y = matmul(a, b).view(12, 5)
    order = a.abs().amax(-1).view(-1).argsort(descending=True, stable=True)
    for length, rows in ((24, order[:4]), (12, order[4:])):
        assert_same_bits(y[rows], sc_matmul(a, b, stoc_len=length).view(12, 5)[rows])
    assert matmul.mean_length == 16


def test_allocation_stays_within_the_mean_length_and_prefers_what_disturbs():
    from digits_mixed import allocate, one_length

    lengths = (8, 16, 32, 64)
    shares = [0.9, 0.1]
    errors = [{(n, one_length(n)): scale / n**2 for n in lengths} for scale in (1.0, 4.0)]
    (first,), (second,) = (plan[0] for plan in allocate(shares, errors, 16))
    assert 0.9 * first + 0.1 * second <= 16 and second > first


def test_calibration_and_the_passes_it_leads_to():
    from digits_mixed import calibrate, mixed_matmuls
    from digits_model import DigitsTransformer

    model, images = DigitsTransformer(width=8, heads=2, blocks=1), randn(6, 8, 8)
    calibration = calibrate(model, images, lengths=(8, 16))
    assert len(calibration[0]) == 8 and abs(sum(calibration[0]) - 1) < 1e-9
    for matmul in mixed_matmuls(calibration, [16]):
        assert model(images, matmul).shape == (6, 10)
        assert 8 <= matmul.mean_length <= 16.2  # shares of rows are rounded


def test_the_cnn_counts_the_same_work_on_streams_and_comes_close():
    from digits_cnn import DigitsCNN
    from digits_evaluate import relative_error
    from digits_model import FloatMatmul, StochasticMatmul

    model, images = DigitsCNN(width=4).eval(), randn(5, 8, 8)
    exact, streams = FloatMatmul(), StochasticMatmul(256)
    with torch.no_grad():
        assert relative_error(model(images, streams), model(images, exact)) < 0.1
    assert exact.macs == streams.macs > 0


def test_the_demo_draws_its_picture_and_prints_its_tables(tmp_path, monkeypatch, capsys):
    import digits

    picture = tmp_path / "digits.png"
    monkeypatch.setattr(sys, "argv", ["digits.py", "--quick", "--output", str(picture)])
    digits.main()
    assert picture.stat().st_size > 0
    table = capsys.readouterr().out
    assert "360 test images" in table and "mixed precision" in table and "CNN:" in table
