"""Random calls of the quantizers, SmoothQuant and the classifiers, against numpy."""

import math

import numpy as np
import reference_quant as reference
import torch
from fuzz_check import flat, on_kernels, on_meta, outcome, same, to_meta
from reference_quant import as_float32

from scmp_kernels import mp, quant

RANGES = (0.0, 1e-5, 0.5, 1.0, 3.0, 1e4, 3.4e38, 1e300, 5e-324)
BAD_RANGES = (-1.0, math.nan, math.inf, -math.inf, 1e308, -1e308)


def spoil(draw, args):
    """Positional arguments with one of them wrong."""
    args = list(args)
    at = draw.randrange(len(args))
    if isinstance(args[at], torch.Tensor):
        args[at] = draw.spoiled(args[at])
    elif isinstance(args[at], float) and draw.chance(0.6):
        args[at] = draw.choice(BAD_RANGES)
    elif isinstance(args[at], (list, tuple)) and draw.chance(0.7):
        values = ([], [0.5], [0.5, math.nan], [2.0], [0.1, 0.9], [*args[at], *args[at]], [-1e-9])
        args[at] = draw.choice(values)
    else:
        args[at] = draw.junk()
    return tuple(args)


def check(draw, call, args, expected):
    """`expected(*args)` on every kernel; sometimes with a bad argument: one ValueError."""
    spoiled = draw.chance(0.5)
    if spoiled:
        args = spoil(draw, args)
    draw.shown |= {"args": args}
    found = on_kernels(draw, lambda: call(*args))
    if all(x.device.type == "cpu" for x in args if isinstance(x, torch.Tensor)):
        on_meta(draw, lambda: call(*map(to_meta, args)), found)
    if not spoiled:
        assert found[1] is None, found[1]
        values = found[0] if not isinstance(found[0], torch.Tensor) else [found[0]]
        with np.errstate(all="ignore"):
            same(list(values), list(flat(expected(*args))))


def call_quantizer(draw):
    """The public quantizers, as functions."""
    prec = draw.choice((8, draw.randint(2, 12)))
    x = draw.tensor((draw.size(20), draw.size(40)))
    levels = draw.count(2**prec)
    name = draw.choice(("bipolar", "perrow", "unipolar", "symmetric", "batched", "asymmetric"))
    draw.shown["name"] = name
    group = draw.choice((1, 2, draw.randint(1, 30), 2**63 - 1))
    qmax = draw.choice((1, 7, 127, 255, 2**24, draw.randint(1, 4095)))
    low, high = sorted(draw.choice((1, -1)) * draw.choice(RANGES) for _ in range(2))
    if name == "bipolar":
        args = (x, draw.choice(RANGES), prec, levels)
        check(draw, quant.fused_quantize_bipolar, args, reference.fused_quantize_bipolar)
    elif name == "perrow":
        args, expected = (x, prec, levels), reference.fused_quantize_bipolar_perrow
        check(draw, quant.fused_quantize_bipolar_perrow, args, expected)
    elif name == "unipolar":
        args = (x, high, low, prec, draw.chance(0.5), levels)
        check(draw, quant.fused_quantize_unipolar, args, reference.fused_quantize_unipolar)
    elif name == "symmetric":
        check(draw, quant._grouped_symmetric_quant, (x, group, qmax), reference.grouped_symmetric)
    elif name == "batched":
        x = draw.tensor((draw.size(3), draw.size(9), draw.size(20)))
        call = quant._grouped_symmetric_quant_batched
        check(draw, call, (x, group, qmax), reference.grouped_symmetric)
    else:
        check(draw, quant._grouped_asymmetric_quant, (x, group, qmax), reference.grouped_asymmetric)


# --- SmoothQuant ---------------------------------------------------------------------------------


def accumulated(x, running=None):
    now = x.reshape(-1, x.shape[-1]).abs() if x.numel() else x.new_zeros(1, x.shape[-1])
    now = now.amax(0)
    return now if running is None else torch.maximum(now, running)


def smooth_scales(act, weight, alpha, eps):
    a = act.double().clamp(min=eps)
    w = accumulated(weight).double().clamp(min=eps)
    return (a**alpha / w ** (1 - alpha)).clamp(min=eps).float()


def call_smoothquant(draw):
    """The four functions, against the same arithmetic in Python."""
    name = draw.choice(("accumulate", "compute", "apply", "offline"))
    draw.shown["name"] = name
    depth = draw.size(9)
    shape = tuple(draw.size(5) for _ in range(draw.randint(0, 3)))
    x, weight, s = draw.tensor((*shape, depth)), draw.tensor((draw.size(6), depth)), None
    s = draw.tensor((depth,))
    if name == "accumulate":
        args = (x, draw.choice((None, s.to(x.dtype))))
        check(draw, quant.accumulate_act_scales, args, accumulated)
    elif name == "compute":
        args = (s, weight, draw.choice((0.0, 0.5, 1.0, draw.random())), draw.choice((1e-5, 1.0)))
        check(draw, quant.compute_smooth_scales, args, smooth_scales)
    elif name == "apply":
        check(
            draw,
            quant.apply_smoothing,
            (x, weight, s),
            lambda a, b, s: (a / s.to(a.dtype), b * s.to(b.dtype)),
        )
    else:
        check(draw, quant.apply_smoothing_offline, (x, s), lambda w, s: w * s.to(w.dtype))


# --- classifiers ---------------------------------------------------------------------------------


def row_metric(x, name):
    wide = x.double()
    if x.shape[-1] == 0:
        return wide.sum(-1).float()
    amax, l2 = wide.abs().amax(-1), wide.square().sum(-1).sqrt()
    return {"amax": amax, "l2": l2, "crest": amax / (l2 + 1e-12)}[name].float()


def levels_by_rank(metric, fractions):
    m = as_float32(metric)
    order = sorted(range(len(m)), key=lambda i: (not math.isnan(m[i]), -np.float64(m[i]), i))
    order.sort(key=lambda i: not math.isnan(m[i]))
    levels, left = np.full(len(m), len(fractions) - 1), order
    for i, fraction in enumerate(fractions[:-1]):
        count = min(len(left), int(np.rint(fraction * len(m))))
        levels[left[:count]], left = i, left[count:]
    return torch.from_numpy(levels)


def levels_by_threshold(metric, fractions, thresholds):
    m = as_float32(metric)
    finite = m[np.isfinite(m)]
    levels = np.zeros(len(m), np.int64)
    span = finite.max() - finite.min() if len(finite) else np.float32(0)
    if np.isfinite(span) and span >= 1e-8:
        normal = (m - finite.min()) / span
        for threshold in thresholds:
            levels += normal < np.float32(threshold)
    return torch.from_numpy(levels)


def levels_of_groups(weight, group_size, threshold, levels):
    x = as_float32(weight)
    size = group_size if 0 < group_size < len(x) else max(1, len(x))
    if x.size == 0:
        return torch.zeros(len(x) // size, dtype=torch.int64)
    x = x.reshape(len(x) // size, -1)
    span = x.max(1) - x.min(1)
    normal = (span - span.min()) / (span.max() - span.min() + np.float32(1e-8))
    out = np.zeros(len(x), np.int64)
    for k in range(levels - 1):
        out[normal < np.float32(min(threshold, 0.95) * (levels - 1 - k) / (levels - 1))] = k + 1
    return torch.from_numpy(out)


def call_classifier(draw):
    """The operators, and the functions around them."""
    name = draw.choice(("metric", "rank", "threshold", "groups", "functions"))
    draw.shown["name"] = name
    metric = draw.tensor((draw.size(30),))
    ops = torch.ops.scmp
    fractions = draw.choice(([1.0], [0.5, 0.5], [0.25] * 4, [0.0, 0.9, 0.1], [0.3335] * 3))
    if name == "metric":
        shape = tuple(draw.size(5) for _ in range(draw.randint(2, 4)))
        args = (draw.tensor(shape), draw.choice(("amax", "l2", "crest")))
        check(draw, mp.compute_row_metric, args, row_metric)
    elif name == "rank":
        check(draw, ops.classify_rows_by_metric, (metric, fractions), levels_by_rank)
    elif name == "threshold":
        thresholds = sorted((draw.random() for _ in range(draw.randint(0, 4))), reverse=True)
        args = (metric, None, thresholds)
        check(draw, ops.adaptive_classify_rows, args, levels_by_threshold)
    elif name == "groups":
        size = draw.choice((0, -1, 1, 2, 3, 2**63 - 1))
        weight = draw.tensor((max(1, size if abs(size) < 9 else 1) * draw.size(5), draw.size(6)))
        args = (weight, size, draw.choice((0.0, 1.0, draw.random())))
        levels = draw.choice((2, 3, 5, draw.randint(2, 5), 4097))
        check(
            draw,
            lambda *args: ops.classify_groups_by_range(*args, levels),
            args,
            lambda *args: levels_of_groups(*args, levels),
        )
    else:
        levels = [256, 64, 16, 0][: len(fractions)]
        args = (metric, levels, fractions)
        args = spoil(draw, args) if draw.chance(0.5) else args
        draw.shown["args"] = args
        out, text = outcome(draw, lambda: mp.classify_rows_by_metric(*args))
        if text is None and args[0].device.type == "cpu":
            rows = torch.cat(list(out.level_row_indices.values()))
            assert rows.sort().values.tolist() == list(range(len(args[0])))
            for length, rows in out.level_row_indices.items():
                assert out.row_stoc_len[rows].eq(length).all()
