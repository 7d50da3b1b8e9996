"""convert and revert: what is swapped, what computes what, and what is refused."""

import gc

import pytest
import torch
from nn_cases import (  # noqa: F401  (a fixture)
    IMAGES,
    SHORT,
    TORCH_ATTENTION,
    Attention,
    by_hand,
    model,
    nothing_left,
)
from support import assert_same_bits, assert_value_error, every_device, forced, randn
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import scmp_kernels
from scmp_kernels import SCConfig, calibrate_smoothquant, convert, mp, revert, summary
from scmp_kernels.nn import SCConv2d, SCLinear, record_products

pytestmark = pytest.mark.usefixtures("nothing_left")


@every_device
def test_a_model_by_hand(device):
    m, plain, images = model().to(device), model().to(device), IMAGES.to(device)
    assert convert(m, SHORT) is m
    expected = by_hand(plain, images, SHORT, SHORT)
    assert_same_bits(m(images), expected)
    with forced("reference"):
        assert_same_bits(m(images), expected)


@every_device
def test_a_model_moves_after_it_was_converted(device):
    m = convert(model(), SHORT).to(device)
    expected = by_hand(model().to(device), IMAGES.to(device), SHORT, SHORT)
    assert_same_bits(m(IMAGES.to(device)), expected)
    assert_same_bits(m.cpu()(IMAGES), by_hand(model(), IMAGES, SHORT, SHORT))


@every_device
def test_scales_and_thresholds_of_a_model(device):
    m, images = convert(model().to(device)), IMAGES.to(device)
    scales = calibrate_smoothquant(m, [images], progress=False)
    assert {x.device.type for x in scales.values()} == {device}
    recorder = mp.CalibrationRecorder([256, 64, 16], progress=False)
    with record_products(m, recorder):
        m(images)
    found = mp.calibrate_thresholds(recorder, mean_length=200, progress=False)
    revert(m)
    out = convert(m, SCConfig(mp=found.config()))(images)
    assert out.device.type == device and bool(out.isfinite().all())


def test_revert_restores_modules_and_bits():
    m = model()
    before, modules, state = m(IMAGES), dict(m.named_modules()), m.state_dict()
    convert(m, SHORT)
    assert F.scaled_dot_product_attention is not TORCH_ATTENTION
    assert not torch.equal(m(IMAGES), before)
    assert list(m.state_dict()) == list(state)
    assert revert(m) is m
    assert_same_bits(m(IMAGES), before)
    assert all(module is modules[name] for name, module in m.named_modules())
    assert all("forward" not in module.__dict__ for module in m.modules())
    assert F.scaled_dot_product_attention is TORCH_ATTENTION
    assert revert(m) is m  # nothing to do


def test_revert_takes_over_what_changed():
    m = convert(model(), SHORT)
    m.train()
    m.load_state_dict(model(1).state_dict(), assign=True)
    revert(m)
    assert m.training and m.head.training
    assert_same_bits(m.eval()(IMAGES), model(1)(IMAGES))


@pytest.mark.parametrize("attention", [True, False, SCConfig(granularity="per_head")])
def test_attention_has_its_own_config(attention):
    m = convert(model(), SHORT, attention=attention)
    used = {True: SHORT, False: None}.get(attention, attention)
    assert_same_bits(m(IMAGES), by_hand(model(), IMAGES, SHORT, used))


def test_a_filter_chooses():
    chosen = {"head": True, "blocks.0.attention": SCConfig(stoc_len=8), "embed": SCConfig()}
    m = convert(model(), SHORT, filter=lambda name, module: chosen.get(name))
    assert type(m.embed) is SCConv2d and m.embed.config == SCConfig()
    assert type(m.head) is SCLinear and m.head.config == SHORT
    assert type(m.blocks[0].attention.qkv) is nn.Linear
    q, k, v = randn(3, 1, 2, 5, 4)
    m.blocks[0].attention.qkv.forward = (
        lambda x: torch.stack((q, k, v)).permute(1, 3, 0, 2, 4).flatten(2)
    )
    m.blocks[0].attention.out.forward = lambda x: x
    out = scmp_kernels.nn.sc_scaled_dot_product_attention(
        q, k, v, is_causal=True, config=SCConfig(stoc_len=8)
    )
    assert_same_bits(m.blocks[0].attention(randn(1, 5, 8)), out.transpose(1, 2).flatten(2))


def test_an_inner_no_wins_over_an_outer_yes():
    m = convert(
        model(),
        SHORT,
        filter=lambda name, module: isinstance(module, nn.Module)
        and not isinstance(module, (Attention, nn.Linear, nn.Conv2d)),
    )
    assert_same_bits(m(IMAGES), model()(IMAGES))


def test_a_filter_sees_layers_and_what_may_attend():
    seen = []
    convert(model(), SHORT, filter=lambda name, module: seen.append(name))
    inner = ["", ".attention", ".attention.qkv", ".attention.out"]
    blocks = [f"blocks.{i}{name}" for i in (0, 1) for name in inner]
    assert seen == ["", "embed", *blocks, "head"]


def test_thresholds_go_by_the_names_of_modules():
    names = [name for name, m in model().named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    names += [f"blocks.{i}.attention.{product}" for i in (0, 1) for product in ("qk", "av")]
    config = mp.AdaptiveMPConfig(
        [256, 16], operator_default_thresholds={name: [0.5] for name in names}
    )
    m = convert(model(), SCConfig(mp=config))
    assert m.blocks[1].attention.out.config.operator == "blocks.1.attention.out"
    assert m(IMAGES).shape == (2, 10)


def test_tied_weights_and_shared_layers():
    m = convert(model(), SHORT)
    assert m.head.weight is m.codes.weight
    layer = nn.Linear(4, 4)
    twice = convert(nn.Sequential(layer, nn.ReLU(), layer))
    assert twice[0] is twice[2] and type(twice[0]) is SCLinear
    revert(twice)
    assert twice[0] is layer and twice[2] is layer


def test_a_layer_is_a_model():
    layer = nn.Linear(4, 4)
    twin = convert(layer, SHORT)
    assert type(twin) is SCLinear and revert(twin) is layer
    assert convert(layer, filter=lambda *_: False) is layer


def test_a_model_that_is_a_layer_with_a_hook_stays():
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda *_: None)
    assert convert(layer) is layer and type(layer) is nn.Linear


def test_subclasses_hooks_and_parametrizations():
    class Same(nn.Linear):
        pass

    class Other(nn.Linear):
        def forward(self, x):
            return super().forward(x) + 1

    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    normed = parametrizations.weight_norm(nn.Linear(4, 4))
    m = convert(nn.Sequential(Same(4, 4), Other(4, 4), hooked, normed))
    assert [isinstance(child, SCLinear) for child in m] == [True, False, False, False]


def test_errors():
    assert_value_error(
        lambda: convert(model(), {"stoc_len": 3}),
        "convert: config must be an SCConfig, got {'stoc_len': 3}",
    )
    assert_value_error(
        lambda: convert(model(), attention=None),
        "convert: attention must be an SCConfig, True or False, got None",
    )
    assert_value_error(
        lambda: convert(model(), filter=lambda *_: "yes"),
        "convert: filter must return True, False, None or an SCConfig, for '' it returned 'yes'",
    )
    assert_value_error(
        lambda: convert(model(), filter="head"),
        "convert: filter must be a function or None, got 'head'",
    )
    for function in (convert, revert, summary, lambda x: calibrate_smoothquant(x, [])):
        with pytest.raises(
            ValueError, match="^[a-z_]*: model must be a torch.nn.Module, got None$"
        ):
            function(None)
    m = convert(model())
    assert_value_error(
        lambda: convert(m),
        "convert: model must not be converted already (revert it first), got one whose 'Model' is",
    )


def test_an_error_leaves_the_model_alone():
    m = model()
    modules = list(m.modules())
    per_head = {"head": SCConfig(granularity="per_head")}
    assert_value_error(
        lambda: convert(m, filter=lambda name, _: per_head.get(name, True)),
        "convert: head: SCLinear: granularity must be 'per_row' or 'per_tensor', got 'per_head'",
    )
    assert list(m.modules()) == modules
    assert_same_bits(m(IMAGES), model()(IMAGES))


def test_attention_that_does_not_go_through_the_function():
    m = model()
    m.blocks[0].attention.fused_attn = False
    with pytest.raises(
        ValueError, match="^convert: model must have fused_attn = True .* in blocks"
    ):
        convert(m)
    convert(m, attention=False)


def test_a_model_that_is_dropped_leaves_torch_as_it_was():
    model = convert(Attention())
    assert F.scaled_dot_product_attention is not TORCH_ATTENTION
    del model
    gc.collect()
    assert F.scaled_dot_product_attention is TORCH_ATTENTION
