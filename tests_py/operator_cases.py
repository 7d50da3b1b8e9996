"""A call of every operator, through the Python function that users call where there is one."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from support import randn
from torch.export import Dim

from scmp_kernels import conv2d_lowered_rows, mp, prepare, quant, sc_conv2d, sc_matmul

OPS = torch.ops.scmp
NO_LENGTHS = (None, None, None, None)
KNOBS = ("per_row", "bipolar", 8, None, 0, 1, 1, None, None, False, None, *NO_LENGTHS[1:])
READY = prepare(randn(6, 16, seed=1))
READY_WEIGHT = prepare(randn(4, 3, 3, 3, seed=1))
READY_GROUPS = prepare(randn(6, 1, 3, 3, seed=1), groups=3)


class Case(NamedTuple):
    """`call` of tensors of these shapes, where a letter is a size that varies.

    `sizes` has a dict of them per call. `dims` are the torch.export.Dims of those that not every
    size is for, and `grad` says whether there is a gradient.
    """

    call: Callable[..., Any]
    shapes: tuple[tuple[str | int, ...], ...]
    sizes: list[dict[str, int]]
    dims: dict[str, Any] = {}
    grad: bool = False

    def inputs(
        self, index: int, grad: bool = False, device: str = "cpu"
    ) -> tuple[torch.Tensor, ...]:
        """Tensors of the shapes at the sizes of this index."""
        sizes = self.sizes[index]
        shapes = [[sizes.get(size, size) for size in shape] for shape in self.shapes]
        tensors = (randn(*shape, seed=i).to(device) for i, shape in enumerate(shapes))
        return tuple(x.requires_grad_(grad) for x in tensors)

    def varying(self) -> list[dict[int, str]]:
        """By input, the dimensions that vary: {dimension: letter}."""
        return [{i: s for i, s in enumerate(shape) if isinstance(s, str)} for shape in self.shapes]


def sizes(**letters):
    """{"n": (5, 7), "d": (16, 9)}, sizes by letter, as a dict per call."""
    return [dict(zip(letters, each, strict=True)) for each in zip(*letters.values(), strict=True)]


PAIRS = sizes(n=(5, 7, 33, 64), m=(6, 9, 2, 65), d=(16, 24, 17, 64))
IMAGES = sizes(b=(2, 3, 5, 4), c=(3, 2, 4, 5), h=(6, 9, 7, 12), w=(5, 8, 11, 6), o=(4, 6, 7, 3))
EVEN = sizes(m=(6, 10, 34, 64), d=(16, 24, 17, 64))
# As for torch's own conv2d: an output has two rows and columns at least.
LEAST = {"h": Dim("h", min=5), "w": Dim("w", min=5)}
ROWS, X, WEIGHT = ("n", "d"), ("b", "c", "h", "w"), ("o", "c", 3, 3)
ADAPTIVE = mp.AdaptiveMPConfig([256, 64, 0], operator_default_thresholds={"up": [0.7, 0.2]})


def by_metric(metric):
    rows = mp.classify_rows_by_metric(metric, [256, 64, 0], [0.25, 0.5, 0.25])
    return rows.row_levels, rows.row_stoc_len


def adaptive(metric):
    rows = mp.adaptive_classify_rows(metric, ADAPTIVE, "up")
    return rows.row_levels, rows.row_stoc_len


def products(x, weight):
    return OPS.conv2d_products(x, weight, *GEOMETRY, 1, *KNOBS)


def prepared_products(x):
    return OPS.conv2d_products(x, *PREPARED_WEIGHT, *GEOMETRY, 1, *NO_LENGTHS)


def expanded(codes):
    return OPS.expand_prepared([codes.short(), *READY.tensors[1:]], READY.spec)


# By operator and overload.
CASES = {
    "sc_matmul": Case(
        lambda a, b: sc_matmul(a, b, stoc_len=100), (ROWS, ("m", "d")), PAIRS, grad=True
    ),
    "sc_matmul.prepared": Case(lambda a: sc_matmul(a, READY), (("n", 16),), PAIRS, grad=True),
    "sc_conv2d": Case(
        lambda x, w, bias: sc_conv2d(x, w, bias, padding=1),
        (X, WEIGHT, ("o",)),
        IMAGES,
        LEAST,
        grad=True,
    ),
    "sc_conv2d.padding": Case(
        lambda x, w, bias: sc_conv2d(x, w, bias, padding="same"),
        (X, WEIGHT, ("o",)),
        IMAGES,
        LEAST,
        grad=True,
    ),
    "sc_conv2d.prepared": Case(
        lambda x: sc_conv2d(x, READY_WEIGHT, stride=2),
        (("b", 3, "h", "w"),),
        IMAGES,
        LEAST,
        grad=True,
    ),
    "sc_conv2d.prepared_padding": Case(
        lambda x: sc_conv2d(x, READY_GROUPS, padding="same"),
        (("b", 3, "h", "w"),),
        IMAGES,
        LEAST,
        grad=True,
    ),
    "conv2d_products": Case(products, (X, WEIGHT), IMAGES, LEAST, grad=True),
    "conv2d_products.prepared": Case(
        prepared_products, (("b", 3, "h", "w"),), IMAGES, LEAST, grad=True
    ),
    "conv2d_lowered_rows": Case(
        lambda x, w: conv2d_lowered_rows(x, w, padding=1, dilation=2),
        (X, WEIGHT),
        IMAGES,
        LEAST,
    ),
    "conv2d_lowered_rows.padding": Case(
        lambda x, w: conv2d_lowered_rows(x, w, padding="same"), (X, WEIGHT), IMAGES, LEAST
    ),
    "expand_prepared": Case(expanded, ((6, 16),), [{}, {}, {}]),
    "fused_quantize_bipolar": Case(
        lambda x: quant.fused_quantize_bipolar(x, 2.0, 8), (ROWS,), PAIRS
    ),
    "fused_quantize_bipolar_perrow": Case(
        lambda x: quant.fused_quantize_bipolar_perrow(x, 8, 100), (ROWS,), PAIRS
    ),
    "fused_quantize_unipolar": Case(
        lambda x: quant.fused_quantize_unipolar(x, 2.0, -1.5, 8, True), (ROWS,), PAIRS
    ),
    "grouped_symmetric_quant": Case(
        lambda x: quant._grouped_symmetric_quant(x, 3, 127), (ROWS,), PAIRS
    ),
    "grouped_asymmetric_quant": Case(
        lambda x: quant._grouped_asymmetric_quant(x, 3, 255), (ROWS,), PAIRS
    ),
    "accumulate_act_scales": Case(quant.accumulate_act_scales, (("m", "n", "d"), ("d",)), PAIRS),
    "compute_smooth_scales": Case(
        lambda act, weight: quant.compute_smooth_scales(act.abs(), weight),
        (("d",), ("m", "d")),
        PAIRS,
    ),
    "apply_smoothing": Case(
        lambda a, b, s: quant.apply_smoothing(a, b, s.abs() + 1),
        (ROWS, ("m", "d"), ("d",)),
        PAIRS,
        grad=True,
    ),
    "apply_smoothing_offline": Case(
        lambda weight, s: quant.apply_smoothing_offline(weight, s.abs() + 1),
        (("m", "d"), ("d",)),
        PAIRS,
        grad=True,
    ),
    "compute_row_metric": Case(
        lambda x: mp.compute_row_metric(x, "crest"), (("m", "n", "d"),), PAIRS
    ),
    "classify_rows_by_metric": Case(by_metric, (("n",),), PAIRS),
    "adaptive_classify_rows": Case(adaptive, (("n",),), PAIRS),
    # Its Python function returns numbers, which no graph holds.
    "classify_groups_by_range": Case(
        lambda weight: OPS.classify_groups_by_range(weight, 2, 0.3, 3),
        (("m", "d"),),
        EVEN,
        {"m": 2 * Dim("groups", min=2)},
    ),
}

A, B, SCALES, METRIC = randn(5, 16), randn(6, 16, seed=1), torch.linspace(0.5, 2, 16), randn(9)
IMAGE, KERNEL, BIAS = randn(2, 3, 6, 5), randn(4, 3, 3, 3, seed=1), randn(4)
GEOMETRY = ([1, 2], [1, 0, 1, 2], [1, 1])
PREPARED_WEIGHT = (READY_WEIGHT.tensors, READY_WEIGHT.spec)

# Positional and keyword arguments for torch.library.opcheck.
ARGUMENTS = {
    "sc_matmul": ((A, B), {"chunk_d": 5}),
    "sc_matmul.prepared": ((A, READY.tensors, READY.spec), {"stoc_len": 50}),
    "prepare": ((B,), {"smooth_scales": SCALES, "expand": True}),
    "prepare_spec": (([6, 16], "per_tensor"), {}),
    "expand_prepared": ((READY.tensors, READY.spec), {}),
    "sc_conv2d": ((IMAGE, KERNEL, BIAS), {"padding": 1}),
    "sc_conv2d.padding": ((IMAGE, KERNEL, BIAS), {"padding": "same"}),
    "sc_conv2d.prepared": ((IMAGE, *PREPARED_WEIGHT, BIAS), {"stride": 2}),
    "sc_conv2d.prepared_padding": ((IMAGE, *PREPARED_WEIGHT, BIAS), {"padding": "same"}),
    "conv2d_products": ((IMAGE, KERNEL, *GEOMETRY, 1, *KNOBS), {}),
    "conv2d_products.prepared": ((IMAGE, *PREPARED_WEIGHT, *GEOMETRY, 1, *NO_LENGTHS), {}),
    "conv2d_lowered_rows": ((IMAGE, KERNEL), {"padding": 1}),
    "conv2d_lowered_rows.padding": ((IMAGE, KERNEL), {"padding": "same"}),
    "fused_quantize_bipolar": ((A, 2.0, 8), {}),
    "fused_quantize_bipolar_perrow": ((A, 8, 100), {}),
    "fused_quantize_unipolar": ((A, 2.0, -1.5, 8, True), {}),
    "grouped_symmetric_quant": ((A, 2, 127), {}),
    "grouped_asymmetric_quant": ((A, 2, 255), {}),
    "accumulate_act_scales": ((A, SCALES), {}),
    "compute_smooth_scales": ((SCALES, B), {}),
    "apply_smoothing": ((A, B, SCALES), {}),
    "apply_smoothing_offline": ((B, SCALES), {}),
    "compute_row_metric": ((A, "crest"), {}),
    "classify_rows_by_metric": ((METRIC, [0.5, 0.5]), {}),
    "adaptive_classify_rows": ((METRIC, None, [0.7, 0.2]), {}),
    "classify_groups_by_range": ((B, 2, 0.3, 3), {}),
}
