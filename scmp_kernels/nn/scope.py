"""Which calls of ``torch.nn.functional.scaled_dot_product_attention`` run on bit streams.

A `Scope` takes the place of a module's ``forward``; while it runs, calls in its thread are computed
by the config of the innermost scope. For that the function is replaced by one that looks at the
thread's scope, for as long as there is a scope in the process: without one around it, a call is
torch's.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import functional as F

from scmp_kernels.nn.attention import sc_scaled_dot_product_attention
from scmp_kernels.nn.config import SCConfig

_float_attention = F.scaled_dot_product_attention
_scopes: "weakref.WeakSet[Scope | observed]" = weakref.WeakSet()
_lock = threading.RLock()  # a scope may be collected while its thread holds it
_installed = False


class _Current(threading.local):
    config: SCConfig | None = None
    observer: Callable[..., None] | None = None


_current = _Current()


def announced(query, key, value, config: SCConfig | None) -> bool:
    """Tell the thread's observer of a call by `config`; return whether it is on bit streams."""
    on = config is not None and config.enabled
    if _current.observer is not None:
        _current.observer(query, key, value, config if on else None)
    return on


def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
    config = _current.config
    if announced(query, key, value, config):
        return sc_scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, **options, config=config
        )
    return _float_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)


_attention.__doc__ = _float_attention.__doc__


def _install() -> None:
    """Put the function where it belongs: in torch if there are scopes, else out of it."""
    global _float_attention, _installed
    with _lock:
        some = any(True for _ in _scopes)  # of those that are alive
        if some and not _installed:
            _float_attention = F.scaled_dot_product_attention
            F.scaled_dot_product_attention = _attention  # type: ignore[assignment]
            _installed = True
        elif _installed and not some and F.scaled_dot_product_attention is _attention:
            F.scaled_dot_product_attention = _float_attention
            _installed = False


class Scope:
    """What a module's ``forward`` is while its attention runs on bit streams.

    Attributes:
        module: whose.
        name: of the module in its model.
        config: SCConfig of the attention in it; None: float.
    """

    def __init__(self, module: nn.Module, name: str, config: SCConfig | None) -> None:
        self.module, self.name, self.config = module, name, config
        self._replaced = module.__dict__.get("forward")
        module.forward = module._scmp_scope = self  # type: ignore[assignment]
        self.__setstate__(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _scopes.add(self)
        weakref.finalize(self, _install).atexit = False  # models that nobody reverted
        _install()

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """What it took the place of; `inspect.signature` looks there."""
        if self._replaced is not None:
            return self._replaced
        return type(self.module).forward.__get__(self.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outer = _current.config
        _current.config = self.config
        try:
            if self._replaced is not None:
                return self._replaced(*args, **kwargs)
            return type(self.module).forward(self.module, *args, **kwargs)
        finally:
            _current.config = outer

    def remove(self) -> None:
        """Give the module its own ``forward`` back.

        Raises:
            ValueError: something else took the place of ``forward`` since.
        """
        if self.module.__dict__.get("forward") is not self:
            raise ValueError(
                f"revert: forward of {self.name or 'model'!r} must be as convert left it, got "
                "another (undo what replaced it first)"
            )
        del self.module.forward, self.module._scmp_scope
        if self._replaced is not None:
            self.module.forward = self._replaced
        _scopes.discard(self)
        _install()


@dataclass
class OwnAttention:
    """The config of a module that attends by itself, as its ``_scmp_attention``."""

    config: SCConfig


def scope_of(module: nn.Module) -> Scope | None:
    """The scope of a module's ``forward``, or None."""
    return module.__dict__.get("_scmp_scope")


def attention_of(module: nn.Module) -> Scope | OwnAttention | None:
    """What has the config of a module's attention as `config`, or None."""
    return module.__dict__.get("_scmp_attention") or scope_of(module)


class observed:
    """Context manager: ``observer(query, key, value, config)`` at each call in this thread.

    `config` is None where the call is torch's.
    """

    def __init__(self, observer: Callable[..., None]) -> None:
        self.observer = observer

    def __enter__(self) -> None:
        _current.observer = self.observer
        _scopes.add(self)
        _install()

    def __exit__(self, *error: Any) -> None:
        _current.observer = None
        _scopes.discard(self)
        _install()
