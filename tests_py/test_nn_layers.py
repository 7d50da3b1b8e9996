"""SCLinear and SCConv2d: their outputs are those of sc_matmul and sc_conv2d by hand."""

import copy
import pickle

import pytest
import torch
from support import DTYPES, assert_same_bits, assert_value_error, every_device, forced, randn
from torch import nn

from scmp_kernels import SCConfig, mp, sc_conv2d, sc_matmul
from scmp_kernels.nn import SCConv2d, SCLinear, SCMultiheadAttention
from scmp_kernels.sc.config_helpers import make_sobol_custom_seed_config

CHUNK_CONFIG = make_sobol_custom_seed_config(4, 4, 8, use_scrambling=True)
KNOBS = {
    "default": {},
    "short": {"stoc_len": 50},
    "per_tensor": {"granularity": "per_tensor"},
    "unipolar": {"mode": "unipolar", "group_b": 3},
    "halved": {"halve_bipolar_stoc_len": True, "group_a": 2},
    "chunks": {"chunk_d": 4, "stoc_len": 100, "config": CHUNK_CONFIG},
    "levels": {"sc_prec": 6, "rng_levels": 50},
}
knobs = pytest.mark.parametrize("name", KNOBS)


def linear(dtype=torch.float32, bias=True):
    layer = nn.Linear(16, 6, bias=bias).to(dtype).eval()
    return layer.requires_grad_(False)


def by_hand(layer, x, **options):
    y = sc_matmul(x.reshape(-1, 16), layer.weight, **options)
    if layer.bias is not None:
        y = y + layer.bias.float()
    return y.to(x.dtype).view(*x.shape[:-1], 6)


@knobs
@every_device
def test_a_linear_layer_by_hand(device, name):
    layer, x = linear().to(device), randn(3, 5, 16).to(device)
    expected = by_hand(layer, x, **KNOBS[name])
    twin = SCLinear.from_float(layer, SCConfig(**KNOBS[name]))
    assert_same_bits(twin(x), expected)
    with forced("reference"):
        assert_same_bits(twin(x), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_dtypes_and_bias(dtype, bias):
    layer, x = linear(dtype, bias), randn(4, 16).to(dtype)
    assert_same_bits(SCLinear.from_float(layer)(x).float(), by_hand(layer, x).to(dtype).float())
    assert SCLinear.from_float(layer)(x).dtype == dtype


@pytest.mark.parametrize("shape", [(16,), (1, 16), (2, 3, 4, 16), (0, 16), (2, 0, 16)])
def test_leading_dimensions(shape):
    layer, x = linear(), randn(*shape)
    assert_same_bits(SCLinear.from_float(layer)(x), by_hand(layer, x))


def test_strided_inputs():
    layer, x = linear(), randn(3, 16, 5).mT
    assert_same_bits(SCLinear.from_float(layer)(x), by_hand(layer, x))


def test_smooth_scales():
    layer, x, scales = linear(), randn(4, 16), randn(16).exp()
    twin = SCLinear.from_float(layer, smooth_scales=scales)
    assert_same_bits(twin(x), by_hand(layer, x, smooth_scales=scales))
    assert list(twin.state_dict()) == ["weight", "bias", "smooth_scales"]
    twin.set_smooth_scales(None)
    assert_same_bits(twin(x), by_hand(layer, x))
    assert list(twin.state_dict()) == list(layer.state_dict())


@pytest.mark.parametrize(
    "config",
    [
        mp.MPConfig([256, 32, 0], [0.25, 0.5, 0.25], mlp_metric="l2"),
        mp.AdaptiveMPConfig([256, 32], target_fractions=[0.5, 0.5]),
        mp.AdaptiveMPConfig([256, 32], operator_default_thresholds={"up": [0.4]}),
        mp.RowAssignment.from_levels(torch.arange(8) % 2, [64, 16]),
    ],
)
def test_lengths_by_row(config):
    layer, x = linear(), randn(2, 4, 16)
    config = SCConfig(mp=config, operator="up")
    lengths = config.lengths(x.view(8, 16), "mlp_metric")
    assert lengths.unique().numel() > 1
    twin = SCLinear.from_float(layer, config)
    assert_same_bits(twin(x), by_hand(layer, x, stoc_len=lengths))


def test_off_is_the_float_layer():
    layer, x = linear(), randn(4, 16)
    twin = SCLinear.from_float(layer, SCConfig(enabled=False))
    assert_same_bits(twin(x), layer(x))
    twin.config = SCConfig(stoc_len=9)
    assert_same_bits(twin(x), by_hand(layer, x, stoc_len=9))


def test_a_new_layer_is_the_twin_of_a_new_layer():
    torch.manual_seed(0)
    layer = nn.Linear(16, 6)
    torch.manual_seed(0)
    twin = SCLinear(16, 6, config=SCConfig(stoc_len=64))
    assert_same_bits(twin.weight.detach(), layer.weight.detach())
    assert isinstance(twin, nn.Linear)
    assert "SCConfig(stoc_len=64)" in repr(twin)
    twin.load_state_dict(layer.state_dict())


GEOMETRIES = {
    "plain": {"kernel_size": 3},
    "strided": {"kernel_size": (3, 2), "stride": 2, "padding": 1, "dilation": (1, 2)},
    "same": {"kernel_size": 3, "padding": "same"},
    "grouped": {"kernel_size": 3, "groups": 2, "padding": 1},
    "depthwise": {"kernel_size": 3, "groups": 4, "padding": 1},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
}


def convolved(conv, x, **options):
    padding = conv.padding
    if conv.padding_mode != "zeros":
        x = nn.functional.pad(x, (1, 1, 1, 1), mode=conv.padding_mode)
        padding = 0
    geometry = {"stride": conv.stride, "padding": padding, "dilation": conv.dilation}
    return sc_conv2d(x, conv.weight, conv.bias, groups=conv.groups, **geometry, **options)


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_device
def test_a_convolution_by_hand(device, geometry, dtype):
    conv = nn.Conv2d(4, 4, **GEOMETRIES[geometry]).to(device, dtype).requires_grad_(False)
    x = randn(2, 4, 7, 6).to(device, dtype)
    twin = SCConv2d.from_float(conv, SCConfig(stoc_len=64))
    assert_same_bits(twin(x).float(), convolved(conv, x, stoc_len=64).float())
    assert twin(x).shape == conv(x).shape and twin(x).dtype == dtype
    assert twin._held is not None


def test_convolutions_that_prepare_does_not_take():
    conv, x = nn.Conv2d(4, 4, 3, groups=2).requires_grad_(False), randn(2, 4, 6, 6)
    scales = randn(36).exp()
    for options in ({"chunk_d": 5}, {"granularity": "per_tensor"}):
        twin = SCConv2d.from_float(conv, SCConfig(**options))
        assert_same_bits(twin(x), convolved(conv, x, **options))
        assert twin._held is None
    twin = SCConv2d.from_float(conv, smooth_scales=scales)
    assert_same_bits(twin(x), convolved(conv, x, smooth_scales=scales))


def test_lengths_by_position():
    conv, x = nn.Conv2d(4, 6, 3, padding=1).requires_grad_(False), randn(2, 4, 4, 4)
    twin = SCConv2d.from_float(conv, SCConfig(mp=mp.MPConfig([128, 16])))
    lengths = twin.config.lengths(twin.lowered_rows(x), "mlp_metric")
    assert_same_bits(twin(x), convolved(conv, x, stoc_len=lengths))
    rows = mp.RowAssignment.from_levels(torch.arange(32) % 2, [64, 16])
    conv = nn.Conv2d(4, 6, 3, padding=1, groups=2).requires_grad_(False)
    twin = SCConv2d.from_float(conv, SCConfig(mp=rows))
    assert_same_bits(twin(x), convolved(conv, x, stoc_len=rows.row_stoc_len))


def test_an_image_without_batch_and_off():
    conv, x = nn.Conv2d(4, 6, 3).requires_grad_(False), randn(4, 5, 5)
    assert_same_bits(SCConv2d.from_float(conv)(x), convolved(conv, x))
    assert_same_bits(SCConv2d.from_float(conv, SCConfig(enabled=False))(x), conv(x))


@pytest.mark.parametrize("twin", [SCLinear(16, 6), SCConv2d(4, 6, 3, groups=2)])
def test_copies(twin):
    x = randn(2, 16) if isinstance(twin, SCLinear) else randn(1, 4, 5, 5)
    expected = twin.eval().requires_grad_(False)(x)
    for other in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        assert other.config == twin.config
        assert_same_bits(other(x), expected)


def test_errors():
    assert_value_error(
        lambda: SCLinear(4, 3)(randn(2, 5)),
        "SCLinear: x must have shape (..., in_features) = (..., 4), got (2, 5)",
    )
    assert_value_error(
        lambda: SCLinear(4, 3, smooth_scales=torch.ones(3)),
        "SCLinear: smooth_scales must have shape (D,) = (4,), got (3,)",
    )
    assert_value_error(
        lambda: SCLinear(4, 3, config=SCConfig(granularity="per_head")),
        "SCLinear: granularity must be 'per_row' or 'per_tensor', got 'per_head'",
    )
    for twin, name, kind in (
        (SCLinear, "linear", "Linear"),
        (SCConv2d, "conv", "Conv2d"),
        (SCMultiheadAttention, "module", "MultiheadAttention"),
    ):
        for other in (None, nn.GELU()):
            assert_value_error(
                lambda twin=twin, other=other: twin.from_float(other),
                f"{twin.__name__}.from_float: {name} must be a torch.nn.{kind}, got {other}",
            )
    assert_value_error(
        lambda: SCLinear(4, 3, config={"stoc_len": 4}),
        "SCLinear: config must be an SCConfig, got {'stoc_len': 4}",
    )
    assert_value_error(
        lambda: SCConv2d(4, 4, 3, groups=2, config=SCConfig(mp=mp.MPConfig([64, 8]))),
        "SCConv2d: mp must be a RowAssignment or None with groups > 1, whose products have rows "
        "of their own, got MPConfig with 2 groups",
    )
