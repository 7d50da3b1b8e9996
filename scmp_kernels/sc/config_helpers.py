"""Build, save and load stream configs.

Every config here is a `StreamConfig`: a frozen dict that the operators know by its digest. Its pool
holds the generator of operand a ("q") first and that of operand b ("k") second; q_e and k_e are the
numbers of positions of a and of b, so both equal the contracted size D, or chunk_d.
"""

import json
import random
from pathlib import Path

from .config import StreamConfig
from .rng import Sobol, check_integer, one_line

_RNG_KEYS = {
    "sobol": ("seed", "seed_type"),
    "lfsr": ("seed", "taps"),
    "true_random": ("seed",),
}
_SNG_KEYS = ("rng_id", "scramble", "complement")


def _build(
    owner, q_e, k_e, sc_prec, *, q_seed=None, k_seed=None, scrambling=False, antithetic=False
):
    """Check the arguments of the helper named `owner` and return its StreamConfig."""
    q_e = check_integer(owner, "q_e", q_e, 0)
    k_e = check_integer(owner, "k_e", k_e, 0)
    sc_prec = check_integer(owner, "sc_prec", sc_prec, 2, 12)
    if not isinstance(scrambling, bool):
        raise ValueError(
            f"{owner}: use_scrambling must be True or False, got {one_line(scrambling)}"
        )

    def rng(seed_type, seed):
        if seed is None:
            return {"type": "sobol", "seed_type": seed_type}
        try:
            return {"type": "sobol", "seed": Sobol(sc_prec, seed).seed}
        except ValueError as error:
            message = str(error).replace("Sobol: seed", f"{owner}: {seed_type}_seed", 1)
            raise ValueError(message) from None

    def sngs(rng_id, count, **extra):
        sng = {"rng_id": rng_id, "scramble": None, **extra}
        if not scrambling:
            return [sng] * count
        bits = range(sc_prec)
        return [{**sng, "scramble": random.sample(bits, sc_prec)} for _ in range(count)]

    pool = [rng("q", q_seed), rng("k", k_seed)]
    q = sngs(0, q_e)
    k = sngs(1, k_e, complement=True) if antithetic else sngs(1, k_e)
    return StreamConfig({"rng_pool": pool, "sng": {"q": q, "k": k}})


def make_sobol_simple_config(q_e, k_e, sc_prec=8):
    """Return the default sequences as a config: one Sobol generator per operand, no scrambling.

    Args:
        q_e, k_e: positions of a and of b, integers >= 0.
        sc_prec: bits of a value, an integer in [2, 12].

    Returns:
        StreamConfig.

    Raises:
        ValueError: an argument is out of range.
    """
    return _build("make_sobol_simple_config", q_e, k_e, sc_prec)


def make_sobol_custom_seed_config(
    q_e, k_e, sc_prec, q_seed=None, k_seed=None, use_scrambling=False
):
    """Return a config of two Sobol generators with given direction numbers.

    Args:
        q_e, k_e: positions of a and of b, integers >= 0.
        sc_prec: bits of a value, an integer in [2, 12].
        q_seed, k_seed: `sc_prec` odd integers with 1 <= seed[i] < 2**(i + 1), or None for the
            default.
        use_scrambling: give every position its own random permutation of the bits, drawn from
            Python's `random` module (`random.seed` makes it repeatable): a's positions, then b's.

    Returns:
        StreamConfig.

    Raises:
        ValueError: an argument is out of range.
    """
    return _build(
        "make_sobol_custom_seed_config",
        q_e,
        k_e,
        sc_prec,
        q_seed=q_seed,
        k_seed=k_seed,
        scrambling=use_scrambling,
    )


def make_sobol_altseed_config(q_e, k_e, sc_prec=8, k_seed=None):
    """Return a config whose b has other direction numbers: `k_seed`, by default 2**(i + 1) - 1.

    Args:
        q_e, k_e: positions of a and of b, integers >= 0.
        sc_prec: bits of a value, an integer in [2, 12].
        k_seed: `sc_prec` odd integers with 1 <= k_seed[i] < 2**(i + 1), or None.

    Returns:
        StreamConfig.

    Raises:
        ValueError: an argument is out of range.
    """
    owner = "make_sobol_altseed_config"
    sc_prec = check_integer(owner, "sc_prec", sc_prec, 2, 12)
    if k_seed is None:
        k_seed = [2 ** (i + 1) - 1 for i in range(sc_prec)]
    return _build(owner, q_e, k_e, sc_prec, k_seed=k_seed)


def make_sobol_antithetic_config(q_e, k_e, sc_prec=8):
    """Return a config with the default sequences where b's values v become 2**sc_prec - 1 - v.

    Args:
        q_e, k_e: positions of a and of b, integers >= 0.
        sc_prec: bits of a value, an integer in [2, 12].

    Returns:
        StreamConfig.

    Raises:
        ValueError: an argument is out of range.
    """
    return _build("make_sobol_antithetic_config", q_e, k_e, sc_prec, antithetic=True)


def save_config(config, filepath, **metadata):
    """Write a config and notes about it to a JSON file, making its folder where needed.

    Args:
        config: a StreamConfig or a dict of the same form.
        filepath: str or path.
        **metadata: anything that JSON can hold.

    Returns:
        pathlib.Path of the file.

    Raises:
        ValueError: the config is malformed, or JSON cannot hold the metadata.
    """
    _check_config("save_config", config)
    try:
        text = json.dumps({"config": config, "metadata": metadata}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"save_config: metadata must be what JSON can hold: {reason}") from None
    path = Path(filepath)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def load_config(filepath):
    """Read a file of `save_config`.

    Args:
        filepath: str or path.

    Returns:
        (StreamConfig, dict of the metadata).

    Raises:
        ValueError: the file is malformed; the message names the file and the key.
        OSError: the file cannot be read.
    """
    path = Path(filepath)
    owner = f"load_config: {path}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError too
        raise ValueError(f"{owner}: must be a JSON file: {' '.join(str(error).split())}") from None
    _check_keys(owner, "the file", content, ("config",), ("metadata",))
    metadata = content.get("metadata", {})
    if not isinstance(metadata, dict):
        raise ValueError(f"{owner}: metadata must be a dict, got {one_line(metadata)}")
    _check_config(owner, content["config"])
    try:
        return StreamConfig(content["config"]), metadata
    except ValueError as error:
        raise ValueError(f"{owner}: {error}") from None


def _check_keys(owner, name, value, required, optional=()):
    """Raise the ValueError of a `value` that is no dict with these keys."""
    if not isinstance(value, dict):
        raise ValueError(f"{owner}: {name} must be a dict, got {one_line(value)}")
    for key in required:
        if key not in value:
            raise ValueError(
                f"{owner}: {name} must have the key {key!r}, got {one_line(list(value))}"
            )
    for key in value:
        if key not in required and key not in optional:
            allowed = ", ".join((*required, *optional))
            raise ValueError(f"{owner}: {name} may have the keys {allowed}, got {one_line(key)}")


def _check_config(owner, config):
    """Raise the ValueError of a malformed config. Values that depend on sc_prec are not judged."""
    _check_keys(owner, "config", config, ("rng_pool", "sng"))
    pool = config["rng_pool"]
    if not isinstance(pool, (list, tuple)) or not pool:
        raise ValueError(
            f"{owner}: config.rng_pool must be a list of generators, got {one_line(pool)}"
        )
    for i, rng in enumerate(pool):
        name = f"config.rng_pool[{i}]"
        _check_keys(owner, name, rng, ("type",), ("seed", "seed_type", "taps"))
        if not isinstance(rng["type"], str) or rng["type"] not in _RNG_KEYS:
            allowed = ", ".join(_RNG_KEYS)
            raise ValueError(
                f"{owner}: {name}.type must be one of {allowed}, got {one_line(rng['type'])}"
            )
        _check_keys(owner, name, rng, ("type",), _RNG_KEYS[rng["type"]])
    _check_keys(owner, "config.sng", config["sng"], ("q", "k"))
    for operand in ("q", "k"):
        sngs = config["sng"][operand]
        if not isinstance(sngs, (list, tuple)):
            raise ValueError(f"{owner}: config.sng.{operand} must be a list, got {one_line(sngs)}")
        for i, sng in enumerate(sngs):
            name = f"config.sng.{operand}[{i}]"
            _check_keys(owner, name, sng, ("rng_id",), _SNG_KEYS)
            check_integer(owner, f"{name}.rng_id", sng["rng_id"], 0, len(pool) - 1)
            scramble = sng.get("scramble")
            if scramble is not None and not isinstance(scramble, (list, tuple)):
                raise ValueError(
                    f"{owner}: {name}.scramble must be a list or None, got {one_line(scramble)}"
                )
            if not isinstance(sng.get("complement", False), bool):
                raise ValueError(
                    f"{owner}: {name}.complement must be a bool, got {one_line(sng['complement'])}"
                )
