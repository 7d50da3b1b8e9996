"""Random calls of sc_matmul, direct and prepared, against numpy and the reference kernel."""

import json

import numpy as np
import reference
import torch
from fuzz_check import REFUSED, flat, on_kernels, on_meta, outcome, same, to_meta
from fuzz_draw import INTEGERS
from reference_quant import as_float32
from strategies import make_config
from support import DTYPES, environment

from scmp_kernels import prepare, sc_matmul
from scmp_kernels.sc.config import StreamConfig

VARIABLES = {
    "SC_OWEN_MODE": ("", "bitrev", "counter", "off", "random"),
    "SC_DISABLE_OWEN": ("", "0", "1"),
    "SC_SCRAMBLE_RESCALE": ("", "0", "1"),
    "SC_SCRAMBLE_MASKS": ("", "1", "2", "8", "64", "256", str(2**30)),
}
JUNK_VARIABLES = ("2", "-1", "true", " 1", "1 ", "é", "9" * 40, "bitrev\n", "Off", "0x8", "3")
JUNK_VARIABLES += ("x" * 500,)
MOST_MACS = 200_000  # of what numpy computes too; larger calls go by the reference kernel alone


def some_environment(draw):
    """SC_* variables, most often none, all well formed."""
    if draw.chance(0.6):
        return {}
    return {n: draw.choice(v) for n, v in VARIABLES.items() if draw.chance(0.5)}


def some_scales(draw, size):
    scales = np.exp(draw.numpy().standard_normal(size))
    return torch.from_numpy(scales).to(draw.choice(DTYPES))


def some_config(draw, positions, prec):
    """A config as a dict, JSON or a config object."""
    config = make_config(draw.getrandbits(32), positions, prec)
    return draw.choice((lambda x: x, StreamConfig, json.dumps))(config)


def add_lengths(draw, knobs, shape, chunks, most):
    """Stream lengths by row, by row and chunk, or as a table of rungs."""
    rng = draw.numpy()
    dtype = draw.choice(INTEGERS)
    top = min(most, torch.iinfo(dtype).max)
    if knobs["chunk_d"] and draw.chance(0.5):
        levels = [int(x) for x in rng.integers(0, most + 1, rng.integers(1, 5))]
        rungs = torch.from_numpy(rng.integers(0, len(levels), (shape[0], chunks))).to(dtype)
        return knobs | {"rung_table": rungs, "level_lens": levels, "stoc_len": None}
    sizes = (shape[0], chunks) if knobs["chunk_d"] and draw.chance(0.5) else shape[:-1]
    lengths = rng.choice([0, top, *rng.integers(0, top + 1, 3)], sizes)  # few: numpy is slow
    return knobs | {"stoc_len": torch.from_numpy(lengths).to(dtype)}


def valid_call(draw):
    """a, b and knobs of a call that must not raise."""
    prec = draw.choice((8, 8, draw.randint(2, 12)))
    batched = draw.chance(0.35)
    most = (9 if batched else 24) if prec <= 9 else 7
    most *= 6 if draw.chance(0.06) else 1
    n, m, depth = draw.size(most), draw.size(most), draw.size(most * 3)
    batch = (draw.size(3),) if batched else ()
    modes = [("per_row", "bipolar")] * 4 + [("per_row", "unipolar"), ("per_tensor", "bipolar")]
    modes += [("per_tensor", "unipolar")] + [("per_head", "bipolar")] * 2 * batched
    granularity, mode = draw.choice(modes)
    halve = draw.chance(0.5)
    longest = 2**prec // (2 if halve and mode == "bipolar" else 1)
    knobs = {"granularity": granularity, "mode": mode, "sc_prec": prec, "chunk_d": 0}
    knobs |= {"halve_bipolar_stoc_len": halve, "stoc_len": draw.count(longest)}
    knobs["rng_levels"] = draw.count(longest)
    by_row = granularity == "per_row"
    if by_row:
        knobs["group_a"] = draw.choice((1, 1, 2, max(1, n), 2**63 - 1))
        knobs["group_b"] = draw.choice((1, 1, 3, max(1, m), 10**9))
    if by_row and mode == "bipolar" and not batched and draw.chance(0.5):
        knobs["chunk_d"] = draw.choice((draw.randint(1, depth + 3), 8, 17, 2**40, 2**63 - 1))
    chunk = knobs["chunk_d"]
    if draw.chance(0.3) and chunk < 1000:
        free = chunk and depth <= chunk and draw.chance(0.5)
        knobs["config"] = some_config(draw, chunk if chunk and not free else depth, prec)
    if draw.chance(0.25):
        knobs["smooth_scales"] = some_scales(draw, depth)
    a, b = draw.tensor((*batch, n, depth), grad=0.1), draw.tensor((*batch, m, depth), grad=0.1)
    if by_row and mode == "bipolar" and draw.chance(0.35):
        chunks = max(1, -(-depth // chunk)) if chunk else 1
        knobs = add_lengths(draw, knobs, a.shape, chunks, longest)
    return a, b, knobs


def expected(a, b, knobs, env):
    """The numpy reference, row by row and chunk by chunk where lengths differ."""
    knobs = dict(knobs)
    config, lengths = knobs.get("config"), knobs.pop("stoc_len")
    if isinstance(config, str):
        knobs["config"] = json.loads(config)
    rungs, levels = knobs.pop("rung_table", None), knobs.pop("level_lens", None)
    if rungs is not None:
        lengths = torch.tensor(levels)[rungs.long()]
    if not isinstance(lengths, torch.Tensor):
        return reference.sc_matmul(a, b, stoc_len=lengths, **knobs, env=env)
    lengths = lengths.long().numpy()
    out = np.zeros((*a.shape[:-1], b.shape[-2]), np.float32)
    by_chunk = a.dim() == 2 and lengths.ndim == 2
    for c in range(lengths.shape[1] if by_chunk else 1):
        part, x, y = lengths, as_float32(a), as_float32(b)
        if by_chunk:  # a chunk alone is a call whose other columns are zeros
            part = lengths[:, c]
            others = np.arange(a.shape[1]) // knobs["chunk_d"] != c
            x[:, others] = y[:, others] = 0
        for length in set(part[part > 0].tolist()):
            z = reference.sc_matmul(x, y, stoc_len=length, **knobs, env=env)
            with np.errstate(all="ignore"):
                out[part == length] += z[part == length]
    return out


def spoiled_value(draw, value):
    """Lengths, rungs, levels or scales with one bad value, or something else in their place."""
    if isinstance(value, torch.Tensor) and value.numel() and draw.chance(0.4):
        value = value.clone()
        if value.is_floating_point():
            bad = draw.choice((0.0, -1.0, float("nan"), float("inf"), 1e30))
        else:
            bad = draw.choice((-1, 2**40, 300, 4)) if value.dtype == torch.int64 else 120
        value.view(-1)[draw.randrange(value.numel())] = bad
        return value
    if isinstance(value, list):
        return draw.choice(([], [-1], [2**40], [*value, 5000], value[:1], draw.junk()))
    return draw.spoiled(value if value is not None else torch.ones(3, dtype=torch.int64))


def spoil(draw, a, b, knobs, env):
    """The same call with one or two things wrong, or not as wrong as they look."""
    for _ in range(draw.choice((1, 1, 2))):
        how = draw.randrange(10)
        if how == 0:
            a = draw.spoiled(a)
        elif how == 1:
            b = draw.spoiled(b)
        elif how == 2:
            env = env | {draw.choice([*VARIABLES, "SCMP_SYNC_CHECKS"]): draw.choice(JUNK_VARIABLES)}
        elif how == 3:
            config = knobs.get("config") or make_config(draw.getrandbits(32), 5, 8)
            text = config if isinstance(config, str) else json.dumps(config)
            try:
                text = draw.spoiled_text(text)
            except ValueError:  # spoiled once already
                pass
            form = draw.choice((str, StreamConfig, dict))
            try:
                knobs = knobs | {"config": form(text if form is str else json.loads(text))}
            except (ValueError, TypeError, RecursionError):
                knobs = knobs | {"config": text}
        elif how == 4:
            name = draw.choice(("smooth_scales", "stoc_len", "rung_table", "level_lens"))
            knobs = knobs | {name: spoiled_value(draw, knobs.get(name))}
        elif how == 5:
            name = draw.choice(("granularity", "mode"))
            values = ("per_row", "per_tensor", "per_head", "unipolar", "bipolar", "", "é")
            knobs = knobs | {name: draw.choice((*values, "x" * 200, draw.junk()))}
        else:
            name = draw.choice([name for name in knobs if name not in ("config", "smooth_scales")])
            knobs = knobs | {name: draw.junk()}
    return a, b, knobs, env


def call_matmul(draw):
    """sc_matmul: numpy's bits, or one ValueError on every kernel and on meta."""
    a, b, knobs = valid_call(draw)
    env = some_environment(draw)
    spoiled = draw.chance(0.55)
    if spoiled:
        a, b, knobs, env = spoil(draw, a, b, knobs, env)
    draw.shown = {"a": a, "b": b, "knobs": knobs, "env": env}
    with environment(env):
        found = on_kernels(draw, lambda: sc_matmul(a, b, **knobs))
        tensors = [x for x in (a, b, *knobs.values()) if isinstance(x, torch.Tensor)]
        if all(x.device.type == "cpu" for x in tensors):
            others = {name: to_meta(value) for name, value in knobs.items()}
            on_meta(draw, lambda: sc_matmul(to_meta(a), to_meta(b), **others), found)
        if found[1] is None and isinstance(found[0], torch.Tensor) and found[0].requires_grad:
            found[0].sum().backward()
            for x in (a, b):
                assert x.grad is None or x.grad.shape == x.shape
    if not spoiled:
        assert found[1] is None or found[1] == REFUSED, found[1]
        if found[1] is None and a.numel() * b.shape[-2] < MOST_MACS:
            same(found[0], expected(a, b, knobs, env))


def call_prepared(draw):
    """A prepared b: the bits of the direct call; damaged parts: a ValueError, never a crash."""
    a, b, knobs = valid_call(draw)
    a, b = a.detach(), b.detach()
    env = some_environment(draw)
    draw.shown = {"a": a, "b": b, "knobs": knobs, "env": env}
    names = ("group_a", "stoc_len", "rung_table", "level_lens")
    free = {name: knobs[name] for name in names if name in knobs}
    fixed = {name: value for name, value in knobs.items() if name not in free}
    with environment(env):
        direct = sc_matmul(a, b, **knobs)
        prepared = prepare(b, **fixed)
        same(on_kernels(draw, lambda: sc_matmul(a, prepared, **free))[0], direct)
        if draw.chance(0.5):
            free = free | {draw.choice(names): draw.junk()}
            repeated = {draw.choice([*fixed]): draw.junk()} if draw.chance(0.5) else {}
            draw.shown |= {"free": free, "repeated": repeated}
            on_kernels(draw, lambda: sc_matmul(a, prepared, **free, **repeated))
            return
        tensors, spec = [x.clone() for x in prepared.tensors], prepared.spec
        if draw.chance(0.5):
            spec = draw.spoiled_text(spec)
        else:
            at = draw.randrange(6)
            x = tensors[at]
            if x.numel() and draw.chance(0.6):
                bad = draw.choice((-1, 0, 300, 32767, -32768, float("nan"), float("inf"), 1e30))
                x.view(-1)[draw.randrange(x.numel())] = (
                    bad if x.is_floating_point() else int(bad if abs(bad) < 40000 else 5)
                )
            else:
                tensors[at] = draw.spoiled(x)
        draw.shown |= {"tensors": tensors, "spec": spec}
        op = torch.ops.scmp.sc_matmul.prepared
        group_a = knobs.get("group_a", 1)
        out, text = on_kernels(draw, lambda: op(a, tensors, spec, group_a=group_a))
        if text is None:
            assert out.dim() == a.dim() and out.shape[:-1] == a.shape[:-1]
        outcome(draw, lambda: flat(torch.ops.scmp.expand_prepared(tensors, spec)))
