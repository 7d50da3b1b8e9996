"""SC-aware training of the digits example, quickly."""

import pytest
from support import ROOT

for module in ("matplotlib", "sklearn", "tqdm"):
    pytest.importorskip(module)


@pytest.fixture
def digits_qat(monkeypatch):
    """The example as a module."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import digits_qat

    return digits_qat


def test_training_on_streams_beats_post_training_at_16_cycles(digits_qat, tmp_path, capsys):
    picture = tmp_path / "qat.png"
    (result,) = digits_qat.main(["--quick", "--output", str(picture)])
    after, control, aware = (result[kind, 16] for kind in digits_qat.KINDS)
    # The control: as many more epochs, in float32.
    assert aware.accuracy > max(after.accuracy, control.accuracy)
    assert aware.loss < min(after.loss, control.loss)
    assert result["SC-aware", 8].accuracy > result["float-tuned", 8].accuracy
    assert picture.stat().st_size > 0
    table = capsys.readouterr().out
    assert f"{aware.accuracy:.2%}" in table and str(picture) in table
