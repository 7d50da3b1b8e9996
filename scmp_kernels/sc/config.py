"""Stream configs: which random sequence drives which position of the two operands.

A config is `{"rng_pool": [rng, ...], "sng": {"q": [sng, ...], "k": [sng, ...]}}`, with one sng per
position of operand a ("q") and of operand b ("k"). The operators take it as JSON or as the digest
("sha256:...") of a config that is alive in this process. `StreamConfig` is such a config: it cannot
change, and it is registered under its digest for as long as it lives, so that a warm call passes a
short string and does no work that grows with the number of positions.
"""

import hashlib
import json
import weakref
from collections.abc import Iterator

import torch
import torch.fx._symbolic_trace as _fx_trace
from torch._C import _is_tracing, _len_torch_dispatch_stack
from torch.compiler import is_compiling as _is_compiling

_WHAT = "sc_matmul: config must be"
_PLAIN_DICT = (
    "sc_matmul: config must come from scmp_kernels.sc.config_helpers in a fullgraph region, "
    "got a plain dict"
)


def _refuse(self, *args, **kwargs):
    raise TypeError(
        f"{type(self).__name__} is frozen: change json.loads(json.dumps(config)) instead"
    )


class FrozenDict(dict):
    """A dict that cannot change: every mutating method raises TypeError."""

    __slots__ = ()

    def __new__(cls, items=()):
        self = super().__new__(cls)
        dict.update(self, items)
        return self

    def __init__(self, items=()):
        pass  # filled by __new__, so that calling __init__ again changes nothing

    def __reduce_ex__(self, protocol):
        return type(self), (dict(self),)

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class FrozenList(list):
    """A list that cannot change: every mutating method raises TypeError."""

    __slots__ = ()

    def __new__(cls, items=()):
        self = super().__new__(cls)
        list.extend(self, items)
        return self

    def __init__(self, items=()):
        pass  # as in FrozenDict

    def __reduce_ex__(self, protocol):
        return type(self), (list(self),)

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse


def _frozen(value, seen):
    """Return `value` with every dict and list in it frozen; equal objects by id stay shared."""
    if not isinstance(value, (dict, list, tuple)):
        return value
    if id(value) not in seen:
        if isinstance(value, dict):
            frozen = FrozenDict({key: _frozen(item, seen) for key, item in value.items()})
        else:
            frozen = FrozenList([_frozen(item, seen) for item in value])
        seen[id(value)] = frozen
    return seen[id(value)]


def canonical_json(config):
    """Return the canonical JSON text of a config: sorted keys, no spaces.

    Args:
        config: a dict that JSON can hold.

    Returns:
        str; it does not depend on the order of keys.

    Raises:
        ValueError: JSON cannot hold it, in one line.
    """
    try:
        return json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"{_WHAT} a dict that JSON can hold, got one that it cannot: {reason}"
        ) from None


class StreamConfig(FrozenDict):
    """A config that cannot change and that the operators know by its digest while it lives.

    Equal to, and serialised as, a plain dict of the same contents; nested dicts and lists are
    frozen too. Copies, deep copies and unpickled ones are StreamConfigs that register anew.

    Args:
        config: a dict that JSON can hold (what is in it is checked by the operator that uses it).

    Raises:
        ValueError: `config` is no dict, or JSON cannot hold it.
        TypeError: at any attempt to change it.
    """

    __slots__ = ("_digest", "_text", "__weakref__")

    def __new__(cls, config):
        if isinstance(config, Iterator):  # pairs, as dataclasses.asdict rebuilds a dict
            config = dict(config)
        if not isinstance(config, dict):
            raise ValueError(f"StreamConfig: config must be a dict, got {type(config).__name__}")
        from scmp_kernels import _C

        text = canonical_json(config)
        digest = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        seen = {}
        self = super().__new__(cls, {key: _frozen(item, seen) for key, item in config.items()})
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_digest", digest)
        _C.register_config(digest, text)
        weakref.finalize(self, _C.unregister_config, digest).atexit = False
        return self

    @property
    def digest(self):
        """str: "sha256:" and the hexadecimal SHA-256 of `text`."""
        return self._digest

    @property
    def text(self):
        """str: the config as canonical JSON."""
        return self._text

    __setattr__ = __delattr__ = _refuse


def is_recording():
    """Whether calls may be recorded in a graph."""
    # is_compiling comes first: under Dynamo it is a constant and the rest is never traced.
    return (
        _is_compiling()
        or _len_torch_dispatch_stack()
        or _fx_trace._is_fx_tracing_flag
        or _is_tracing()
    )


def is_transformed(tensor):
    """Whether a tensor stands for others in a torch.func transform (torch.vmap) that runs eagerly,
    so that it has neither memory nor values of its own."""
    return not _is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def config_argument(config):
    """Return what an operator takes as `config` for what its Python function was given.

    Args:
        config: None, a StreamConfig, a plain dict (serialised at every call, so never stale), or a
            str (JSON or a digest), which passes through.

    Returns:
        None or str: for a StreamConfig its digest, or its JSON text where the call may be recorded
        in a graph (torch.compile, torch.export, torch.jit.trace, torch.fx, fake tensors): a digest
        means nothing in another process.

    Raises:
        ValueError: another type, a dict that JSON cannot hold, or a digest in a recorded call.
    """
    if config is None:
        return None
    if isinstance(config, StreamConfig):
        return config._text if is_recording() else config._digest
    if isinstance(config, dict):
        if _is_compiling():
            torch._dynamo.graph_break(msg=_PLAIN_DICT)
        return canonical_json(config)
    if isinstance(config, str):
        if config.startswith("sha256:") and is_recording():
            raise ValueError(
                f"{_WHAT} JSON text or the config itself where a graph is recorded, got the "
                f"digest {config[:20]}..., which means nothing in another process"
            )
        return config
    raise ValueError(
        f"{_WHAT} a dict, a config from scmp_kernels.sc.config_helpers or None, "
        f"got {type(config).__name__}"
    )
