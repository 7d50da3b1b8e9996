"""SmoothQuant scales of a converted model: those of the package's functions by hand."""

import pytest
import torch
from nn_cases import IMAGES, by_hand, model
from support import assert_same_bits, assert_value_error, randn
from torch import nn

from scmp_kernels import SCConfig, calibrate_smoothquant, convert, quant, sc_matmul
from scmp_kernels.nn import SCConv2d


def converted(**options):
    return convert(model(), SCConfig(stoc_len=64), **options)


def seen_by(m, names, batches):
    """{name: the float inputs of a layer}."""
    inputs = {name: [] for name in names}
    for name in names:
        layer = m.get_submodule(name)
        layer.register_forward_pre_hook(lambda _, args, name=name: inputs[name].append(args[0]))
    for batch in batches:
        m(batch)
    return {name: torch.cat(found) for name, found in inputs.items()}


@pytest.mark.parametrize("alpha", [0.5, 0.8])
def test_scales_by_hand(alpha):
    batches = [IMAGES, randn(3, 3, 8, 8, seed=1)]
    m = converted()
    scales = calibrate_smoothquant(m, batches, alpha, progress=False)
    layers = {n: x for n, x in m.named_modules() if isinstance(x, (nn.Linear, nn.Conv2d))}
    assert list(scales) == list(layers)
    for name, x in seen_by(model(), layers, batches).items():
        weight = layers[name].weight.flatten(1)
        if name == "embed":
            x = layers[name].lowered_rows(x)
        act = quant.accumulate_act_scales(x)
        expected = quant.compute_smooth_scales(act, weight, alpha)
        assert_same_bits(scales[name], expected)
        assert_same_bits(layers[name].smooth_scales, expected)
    x = randn(4, 8)
    y = sc_matmul(x, m.head.weight, stoc_len=64, smooth_scales=scales["head"]) + m.head.bias
    assert_same_bits(m.head(x), y)


def test_it_leaves_the_rest_as_it_was():
    m = converted()
    m.train()
    m.blocks[0].eval()
    modes = [module.training for module in m.modules()]
    configs = [m.head.config, m.forward.config]
    calibrate_smoothquant(m, [IMAGES], filter=lambda name, _: name == "head", progress=False)
    assert [module.training for module in m.modules()] == modes
    assert [m.head.config, m.forward.config] == configs
    assert m.embed.smooth_scales is None and m.head.smooth_scales is not None
    assert not m.head._forward_pre_hooks
    m.head.set_smooth_scales(None)
    assert_same_bits(
        m.eval()(IMAGES), by_hand(model(), IMAGES, SCConfig(stoc_len=64), SCConfig(stoc_len=64))
    )


def test_batches_of_every_form():
    expected = calibrate_smoothquant(converted(), [IMAGES], progress=False)
    batches = ([(IMAGES,)], [[IMAGES]], [{"image": IMAGES}], iter([IMAGES]))
    for data in batches:
        found = calibrate_smoothquant(converted(), data, progress=False)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    found = calibrate_smoothquant(
        converted(), [1.0], forward=lambda m, scale: m(IMAGES * scale), progress=True
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_grouped_convolutions_have_none():
    net = convert(nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 2, 1)))
    assert list(calibrate_smoothquant(net, [randn(1, 4, 5, 5)], progress=False)) == ["1"]
    assert isinstance(net[0], SCConv2d) and net[0].smooth_scales is None


def test_errors():
    assert_value_error(
        lambda: calibrate_smoothquant(model(), [IMAGES]),
        "calibrate_smoothquant: model must have SCLinear or SCConv2d layers (convert it first) "
        "that filter lets through, got none",
    )
    assert_value_error(
        lambda: calibrate_smoothquant(converted(), []),
        "calibrate_smoothquant: data must have batches that reach the layers, got none",
    )
    assert_value_error(
        lambda: calibrate_smoothquant(converted(), [IMAGES[:0]], progress=False),
        "calibrate_smoothquant: data must have batches that reach the layers, got none",
    )
    for data, shown in ((torch.ones(1), "tensor([1.])"), ({"x": 1}, "{'x': 1}"), (None, "None")):
        assert_value_error(
            lambda data=data: calibrate_smoothquant(converted(), data, progress=False),
            f"calibrate_smoothquant: data must be a list of batches, got {shown}",
        )
    assert_value_error(
        lambda: calibrate_smoothquant(converted(), [IMAGES], progress=1),
        "calibrate_smoothquant: progress must be True, False or None, got 1",
    )
    assert_value_error(
        lambda: calibrate_smoothquant(converted(), [IMAGES * torch.inf], progress=False),
        "calibrate_smoothquant: data must be finite in every layer, got NaN or Inf in 'embed'",
    )
    m = converted()
    with pytest.raises(ValueError, match="alpha must be in .0, 1., got 2"):
        calibrate_smoothquant(m, [IMAGES], 2.0, progress=False)
    assert m.head.smooth_scales is None and m.head.config.enabled
