"""Random damage of what is loaded: state_dicts, mixed-precision configs, stream configs."""

import json
import tempfile
from pathlib import Path

import torch
from fuzz_check import outcome, same
from strategies import make_config
from support import environment, randn

from scmp_kernels import mp, prepare, sc_matmul
from scmp_kernels.sc import config_helpers

KINDS = (
    {},
    {"chunk_d": 5, "group_b": 4, "halve_bipolar_stoc_len": True},
    {"mode": "unipolar", "group_b": 2},
    {"granularity": "per_tensor"},
    {"granularity": "per_tensor", "mode": "unipolar"},
    {"smooth_scales": torch.linspace(0.5, 2, 16)},
    {"config": make_config(1, positions=16, prec=8), "rng_levels": 100},
)


def load_state(draw):
    """A damaged state_dict is refused and changes nothing, or loads and computes or refuses."""
    a, b = randn(5, 16), randn(6, 16, seed=1)
    with environment({}):
        prepared, other = prepare(b, **draw.choice(KINDS)), prepare(b, **draw.choice(KINDS))
        before = sc_matmul(a, prepared)
        state = dict(other.state_dict())
        for _ in range(draw.choice((1, 1, 2))):
            name = draw.choice(list(state))
            if name == "_extra_state" and isinstance(state[name], str):
                try:
                    state[name] = draw.spoiled_text(state[name])
                except ValueError:
                    state[name] = draw.junk()
            elif draw.chance(0.2):
                del state[name]
            else:
                state[name] = draw.spoiled(state[name])
        draw.shown = {"state": state}
        try:
            prepared.load_state_dict(state, strict=draw.chance(0.7))
        except (ValueError, RuntimeError) as error:
            text = str(error)
            whole = "Error(s) in loading state_dict" in text or text.startswith("Prepared: ")
            assert whole and (type(error) is RuntimeError or "\n" not in text), repr(text)
            same(sc_matmul(a, prepared), before)
            return
        out, text = outcome(draw, lambda: sc_matmul(a, prepared))
        if text is None:
            assert out.dtype == torch.float32 and len(out) == 5


TABLE = {
    "stoc_len_levels": [128, 64, 32],
    "timestep_buckets": 2,
    "layer_buckets": 3,
    "operator_defaults": {"qk": {"thresholds": [0.6, 0.2], "loss": 0.1}, "fc1": [0.5, 0]},
    "buckets": {"qk:t0:l1": {"thresholds": [0.8, 0.4]}, "a:b:t1:l2": {"thresholds": [1, 1]}},
    "made_by": "a calibrator",
}
CONFIGS = (
    mp.MPConfig([256, 128, 0], [0.25, 0.25, 0.5]),
    mp.AdaptiveMPConfig([256, 128], target_fractions=[0.5, 0.5]),
    mp.AdaptiveMPConfig(
        [256, 128, 64],
        timestep_buckets=2,
        operator_default_thresholds={"qk": [0.5, 0.25]},
        bucket_thresholds={("qk", 1, 0): [1.0, 0.5]},
    ),
    mp.RangeMPConfig([32, 16], 0.5, {"fc1": 0.25}),
)


def written(folder, text):
    path = Path(folder) / "file.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    return path


def load_mp_config(draw):
    """A damaged config or threshold table: a ValueError that names the file, or a sound config."""
    with tempfile.TemporaryDirectory() as folder:
        config = draw.choice(CONFIGS)
        path = config.to_json(Path(folder) / "file.json")
        table = draw.chance(0.4)
        path = written(folder, draw.spoiled_text(json.dumps(TABLE) if table else path.read_text()))
        draw.shown = {"text": path.read_bytes(), "config": config}
        if table:
            read = lambda: mp.AdaptiveMPConfig([128, 64, 32], threshold_table_path=path)  # noqa: E731
        else:
            read = lambda: type(config).from_json(path)  # noqa: E731
        loaded, text = outcome(draw, read)
        if text is not None:
            assert "file.json" in text, text
            return
        again = type(loaded).from_json(loaded.to_json(Path(folder) / "again.json"))
        assert again == loaded
        if isinstance(loaded, mp.AdaptiveMPConfig):
            place = ("qk", draw.randint(-1, 9), draw.choice((None, 3, 10**30)))
            args = (
                draw.tensor((draw.size(9),)),
                loaded,
                *place,
                draw.randint(0, 9),
                draw.randint(0, 9),
            )
            draw.shown["args"] = args
            outcome(draw, lambda: mp.adaptive_classify_rows(*args))


def load_stream_config(draw):
    """A damaged file of save_config; helpers with junk; what loads is judged by the operator."""
    with tempfile.TemporaryDirectory() as folder, environment({}):
        config = make_config(draw.getrandbits(32), positions=4, prec=8)
        path = config_helpers.save_config(config, Path(folder) / "file.json", note="x")
        path = written(folder, draw.spoiled_text(path.read_text()))
        draw.shown = {"text": path.read_bytes()}
        loaded, text = outcome(draw, lambda: config_helpers.load_config(path))
        if text is not None:
            assert "file.json" in text, text
        else:
            a = draw.tensor((3, 4))
            outcome(draw, lambda: sc_matmul(a, a, config=loaded[0]))
        name = draw.choice(("simple", "custom_seed", "altseed", "antithetic"))
        args = [draw.size(9), draw.size(9), draw.randint(2, 12)]
        args[draw.randrange(3)] = draw.junk()
        if name in ("custom_seed", "altseed"):
            args.append(draw.choice((None, [1] * 8, [1, 3], draw.junk())))
        if any(isinstance(x, int) and x > 10**4 for x in args):
            return  # as many positions as asked for
        draw.shown = {"name": name, "args": args}
        outcome(draw, lambda: getattr(config_helpers, f"make_sobol_{name}_config")(*args))
