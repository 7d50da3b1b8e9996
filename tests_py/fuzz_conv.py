"""Random convolutions against the product that they lower to, on the reference kernel."""

import json

import torch
from fuzz_check import on_kernels, on_meta, same, to_meta
from strategies import make_config
from support import DTYPES, environment, forced
from test_conv import lowered

from scmp_kernels import conv2d_lowered_rows, sc_conv2d


def valid_call(draw):
    """x, weight, bias, geometry and knobs of a call that must not raise."""
    groups = draw.choice((1, 1, 2, 3))
    depthwise = groups > 1 and draw.chance(0.5)
    in_group, out_group = (1, 1) if depthwise else (draw.randint(1, 3), draw.randint(1, 3))
    kernel = draw.choice(((1, 1), (draw.randint(1, 3), draw.randint(1, 3))))
    stride = (draw.randint(1, 3), draw.randint(1, 3))
    dilation = (draw.randint(1, 3), draw.randint(1, 2))
    padding = draw.choice(((draw.randint(0, 2), draw.randint(0, 2)), "valid", "same"))
    stride = (1, 1) if padding == "same" else stride
    size = [dilation[i] * (kernel[i] - 1) + 1 + draw.randint(0, 4) for i in range(2)]
    x = draw.tensor((draw.randint(1, 2), groups * in_group, *size), bad=0.1)
    weight = draw.tensor((groups * out_group, in_group, *kernel), bad=0.05)
    bias = draw.choice((None, draw.tensor((groups * out_group,), bad=0.05)))
    columns = in_group * kernel[0] * kernel[1]
    depthwise = groups > 1 and in_group == out_group == 1
    mode = draw.choice(("bipolar", "bipolar", "unipolar"))
    prec = draw.choice((8, 4, 9))
    knobs = {"mode": mode, "sc_prec": prec, "halve_bipolar_stoc_len": draw.chance(0.5)}
    longest = 2 ** (prec - 1)
    knobs |= {"stoc_len": draw.count(longest), "rng_levels": draw.count(longest)}
    knobs["granularity"] = "per_row" if depthwise or draw.chance(0.7) else "per_tensor"
    if knobs["granularity"] == "per_row":
        knobs |= {"group_a": draw.choice((1, 3, 2**40)), "group_b": draw.choice((1, 2, 2**40))}
        if mode == "bipolar" and not depthwise and draw.chance(0.3):
            knobs["chunk_d"] = draw.choice((4, 64, 2**40))
    if draw.chance(0.3) and "chunk_d" not in knobs:
        config = make_config(draw.getrandbits(32), columns, prec)
        knobs["config"] = draw.choice((config, json.dumps(config)))
    if draw.chance(0.3):
        scales = draw.numpy().random(columns * groups) + 0.5
        knobs["smooth_scales"] = torch.from_numpy(scales).to(draw.choice(DTYPES))
    geometry = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return x, weight, bias, geometry, knobs


def spoil(draw, x, weight, bias, geometry, knobs):
    """The same call with something wrong, or not as wrong as it looks."""
    how = draw.randrange(6)
    if how == 0:
        x = draw.spoiled(x)
    elif how == 1:
        weight = draw.spoiled(weight)
    elif how == 2:
        bias = draw.spoiled(bias if bias is not None else torch.ones(3))
    elif how == 3:
        name = draw.choice(list(geometry))
        values = (0, -1, (), (0, 1), (1, -1), (1, 2, 3), 7, -(2**63), 2**63, 10**30)
        values += (2**31, 2**62, 2**63 - 1)
        values += ("full", "same", "", None, 1.5, [2], torch.tensor(2))
        geometry = geometry | {name: draw.choice(values)}
    elif how == 4:
        sizes = draw.choice(((0,), (0, 4), (30,), (18, 2)))
        name = draw.choice(("stoc_len", "rung_table", "smooth_scales", "level_lens"))
        knobs = knobs | {name: torch.ones(sizes, dtype=draw.choice((torch.int64, torch.float32)))}
    else:
        knobs = knobs | {draw.choice(list(knobs)): draw.junk()}
    return x, weight, bias, geometry, knobs


def call_conv2d(draw):
    """sc_conv2d: the bits of the product it lowers to, or one ValueError."""
    x, weight, bias, geometry, knobs = valid_call(draw)
    spoiled = draw.chance(0.5)
    if spoiled:
        x, weight, bias, geometry, knobs = spoil(draw, x, weight, bias, geometry, knobs)
    draw.shown = {"x": x, "weight": weight, "bias": bias, "geometry": geometry, "knobs": knobs}
    with environment({}):
        found = on_kernels(draw, lambda: sc_conv2d(x, weight, bias, **geometry, **knobs))
        on_cpu = [
            y.device.type == "cpu"
            for y in (x, weight, bias, *knobs.values())
            if isinstance(y, torch.Tensor)
        ]
        if all(on_cpu):
            meta = [to_meta(y) for y in (x, weight, bias)]
            others = {name: to_meta(value) for name, value in knobs.items()}
            on_meta(draw, lambda: sc_conv2d(*meta, **geometry, **others), found)
        on_kernels(draw, lambda: conv2d_lowered_rows(x, weight, **geometry))
        if not spoiled:
            assert found[1] is None, found[1]
            with forced("reference"):
                expected = lowered(x, weight, bias, **geometry, **knobs)
            same(found[0], expected.to(x.dtype))
