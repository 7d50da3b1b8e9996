"""What the convolution tests share: the lowering of the specification, and random convolutions."""

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from support import randn

from scmp_kernels import sc_matmul


def padded(x, kernel, stride, padding, dilation):
    """x with explicit zeros, as torch pads it."""
    if padding == "valid":
        return x
    if padding == "same":
        pads = []
        for k, d in zip(reversed(kernel), reversed(dilation), strict=True):
            total = d * (k - 1)
            pads += [total // 2, total - total // 2]
        return F.pad(x, pads)
    return F.pad(x, (padding[1], padding[1], padding[0], padding[0]))


def lowered(x, weight, bias, stride, padding, dilation, groups, **knobs):
    """The convolution as the specification lowers it, on the reference kernel."""
    scales = knobs.pop("smooth_scales", None)
    kernel, channels = weight.shape[2:], x.shape[1] // groups
    x = padded(x, kernel, stride, padding, dilation).float()
    size = [(x.shape[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(2)]
    depthwise = groups > 1 and groups == x.shape[1] == weight.shape[0]
    parts = []
    for g in range(groups):
        columns = F.unfold(x[:, g * channels : (g + 1) * channels], kernel, dilation, 0, stride)
        out = weight.shape[0] // groups
        b = weight[g * out : (g + 1) * out].reshape(out, -1)
        s = None if scales is None else scales.view(groups, -1)[g]
        a = columns.mT.reshape(-1, b.shape[1])
        if depthwise:  # a batch entry is a product of its own
            rows = [
                sc_matmul(one, b, smooth_scales=s, **knobs)
                for one in a.view(len(x), -1, b.shape[1])
            ]
            parts.append(torch.stack(rows))
        else:
            parts.append(sc_matmul(a, b, smooth_scales=s, **knobs).view(len(x), -1, out))
    y = torch.cat(parts, -1)
    if bias is not None:
        y = y + bias.float()
    return y.mT.reshape(len(x), -1, *size)


@st.composite
def convolutions(draw):
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    kind = draw(st.sampled_from(("dense", "dense", "depthwise", "pointwise")))
    channels = groups if kind == "depthwise" else groups * draw(st.integers(1, 3))
    out = groups if kind == "depthwise" else groups * draw(st.integers(1, 3))
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel = (1, 1) if kind == "pointwise" else draw(pair)
    stride, dilation = draw(pair), draw(pair)
    padding = draw(
        st.one_of(
            st.tuples(st.integers(0, 2), st.integers(0, 2)), st.sampled_from(("same", "valid"))
        )
    )
    if padding == "same":
        stride = (1, 1)
    reach = [dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
    size = [reach[i] + draw(st.integers(0, 4)) for i in range(2)]
    x = randn(draw(st.integers(1, 2)), channels, *size, seed=draw(st.integers(0, 99)))
    weight = randn(out, channels // groups, *kernel, seed=draw(st.integers(0, 99)))
    bias = draw(st.sampled_from((None, randn(out, seed=5))))
    depthwise = groups > 1 and groups == channels == out
    knobs = draw(
        st.sampled_from(
            (
                {},
                {"halve_bipolar_stoc_len": True},
                {"mode": "unipolar"},
                {"stoc_len": 50, "group_a": 3},
            )
        )
    ).copy()
    if not depthwise:
        extra = [{}, {"granularity": "per_tensor"} if "group_a" not in knobs else {}]
        extra.append({"chunk_d": 4} if "mode" not in knobs else {})
        knobs |= draw(st.sampled_from(extra))
    if draw(st.booleans()):
        knobs["smooth_scales"] = randn(channels * kernel[0] * kernel[1], seed=7).exp()
    return x, weight, bias, stride, padding, dilation, groups, knobs
