"""What summary says: lengths, multiply-accumulates, shares."""

import pytest
import torch
from nn_cases import IMAGES, model
from support import assert_same_bits, randn
from torch import nn

from scmp_kernels import SCConfig, convert, mp, revert, summary

MACS = {  # of IMAGES: two images of four patches
    ("embed", "SCConv2d"): 8 * 8 * 48,
    ("head", "SCLinear"): 2 * 10 * 8,
}
for _i in (0, 1):
    _name = f"blocks.{_i}.attention"
    MACS[(_name, "qk")] = MACS[(_name, "av")] = 2 * 2 * 4 * 4 * 4
    MACS[(f"{_name}.qkv", "SCLinear")] = 8 * 24 * 8
    MACS[(f"{_name}.out", "SCLinear")] = 8 * 8 * 8


def test_all_on_bit_streams(capsys):
    m = convert(model(), SCConfig(stoc_len=64))
    result = summary(m, IMAGES)
    assert {(row.name, row.kind): row.macs for row in result.rows} == MACS
    assert all(row.lengths == [64] for row in result.rows)
    assert result.share == 1 and result.macs == sum(MACS.values())
    printed = capsys.readouterr().out
    assert printed == result.text() + "\n"
    assert printed.splitlines()[-1] == (
        f"10 of 10 rows on bit streams, 100.0% of {sum(MACS.values())} multiply-accumulates"
    )


def test_float_parts():
    levels = SCConfig(mp=mp.MPConfig([128, 32]))
    chosen = {"embed": False, "head": levels}
    m = convert(model(), SCConfig(), filter=lambda name, _: chosen.get(name, True), attention=False)
    result = summary(m, IMAGES, verbose=False)
    rows = {(row.name, row.kind): row for row in result.rows}
    assert rows["embed", "Conv2d"].lengths == [] and rows["embed", "Conv2d"].macs == 8 * 8 * 48
    assert rows["head", "SCLinear"].lengths == [128, 32]
    assert rows["blocks.0.attention", "qk"].lengths == []
    assert result.macs == sum(MACS.values())
    assert "other" not in {row.kind for row in result.rows}
    floats = 8 * 8 * 48 + 4 * 2 * 2 * 4 * 4 * 4
    assert result.sc_macs == result.macs - floats


def test_products_that_no_layer_makes():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 6)

        def forward(self, x):
            return self.a(x) @ self.a.weight

    result = summary(convert(Tied()), randn(5, 4), verbose=False)
    assert [(row.kind, row.macs) for row in result.rows] == [("SCLinear", 120), ("other", 120)]
    assert result.share == 0.5


@pytest.mark.parametrize(
    ("product", "macs"),
    [
        (lambda x: x @ x[0], 5 * 6),
        (lambda x: x[0] @ x[1], 6),
        (
            lambda x: torch._grouped_mm(
                torch.ones(8, 16).bfloat16(),
                torch.ones(2, 16, 32).bfloat16(),
                offs=torch.tensor([3, 8], dtype=torch.int32),
            ),
            8 * 16 * 32,
        ),
        (
            lambda x: torch._grouped_mm(
                torch.ones(2, 8, 16).bfloat16(), torch.ones(2, 16, 32).bfloat16()
            ),
            2 * 8 * 16 * 32,
        ),
    ],
    ids=["vector", "two_vectors", "experts", "batch"],
)
def test_products_that_torchs_counter_leaves_out(product, macs):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 6)

        def forward(self, x):
            y = self.a(x)
            product(y)
            return y

    result = summary(convert(Model()), randn(5, 4), verbose=False)
    assert [(row.kind, row.macs) for row in result.rows] == [("SCLinear", 120), ("other", macs)]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers(kind):
    layer = kind(8, 16, num_layers=2, bidirectional=True)
    matrices = sum(w.numel() for w in layer.parameters() if w.dim() == 2)
    (row,) = summary(nn.Sequential(layer), randn(3, 2, 8), verbose=False).rows
    assert (row.kind, row.macs) == ("other", 3 * 2 * matrices)


def test_without_an_example():
    result = summary(convert(model(), SCConfig(halve_bipolar_stoc_len=True)), verbose=False)
    assert [row.name for row in result.rows] == [
        name for name, m in model().named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))
    ]
    assert all(row.lengths == [128] and row.macs is None for row in result.rows)
    assert result.macs is None and result.share is None
    assert result.text().endswith("6 of 6 rows on bit streams")


def test_it_changes_nothing():
    m = convert(model(), SCConfig(stoc_len=64)).train()
    attend = torch.nn.functional.scaled_dot_product_attention
    summary(m, IMAGES, verbose=False)
    assert m.training and torch.nn.functional.scaled_dot_product_attention is attend
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in m.modules())
    assert_same_bits(revert(m).eval()(IMAGES), model()(IMAGES))
    before = torch.nn.functional.scaled_dot_product_attention
    assert summary(m, IMAGES, verbose=False).share == 0
    assert torch.nn.functional.scaled_dot_product_attention is before


def test_a_model_without_products():
    assert summary(nn.ReLU(), randn(3), verbose=False).text().endswith("0 of 0 rows on bit streams")
