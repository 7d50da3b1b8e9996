"""Operand b quantized once: for weights that meet many activations."""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from scmp_kernels.sc.config import StreamConfig, config_argument, is_recording

_BUFFERS = ("codes", "scales", "zero_points", "level_sums", "tensor_affine", "smooth_scales")
_KNOBS = (
    "granularity",
    "mode",
    "sc_prec",
    "chunk_d",
    "group_b",
    "rng_levels",
    "halve_bipolar_stoc_len",
)


class Prepared(nn.Module):
    """An operand b as `prepare` returns it; give it to `sc_matmul` in b's place.

    Its buffers hold a form that every device can use, so it moves with ``.to()``, pickles,
    deep-copies and lives in a state_dict; casts leave them as they are. `spec` (JSON) says what it
    was made for and is the state_dict's extra state.

    Attributes:
        shape: (M, D) or (B, M, D) of b.
        granularity, mode, sc_prec, chunk_d, group_b, rng_levels, halve_bipolar_stoc_len, config:
            the knobs it was made for (config: dict or None).
        expand: whether it keeps its bit patterns for calls of the default length too.
        spec: str, JSON.
        codes: int16 of b's shape, sign times code.
        scales: float32 (B, chunks, M). zero_points, level_sums: float32 (B, M) where unipolar.
        tensor_affine: float64 (2,), scale and zero point, where per_tensor.
        smooth_scales: float32 (D,). Buffers that do not apply are empty.
    """

    def __init__(self, tensors: list[torch.Tensor], spec: str, expand: bool) -> None:
        super().__init__()
        for name, tensor in zip(_BUFFERS, tensors, strict=False):
            self.register_buffer(name, tensor)
        self.expand = expand
        self._expanded = tensors[len(_BUFFERS)] if len(tensors) > len(_BUFFERS) else None
        self._take_spec(spec)

    def _take_spec(self, spec: str) -> None:
        """Read the knobs off `spec`."""
        fields = json.loads(spec)
        for name in _KNOBS:
            setattr(self, name, fields[name])
        self.shape = tuple(fields["shape"])
        self.spec = spec
        # A call passes the config by its digest; this object keeps it alive.
        self.config = None
        self._call_spec = spec
        if fields["config"] is not None:
            self.config = StreamConfig(json.loads(fields["config"]))
            self._call_spec = json.dumps({**fields, "config": self.config.digest})

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What the operator takes as b."""
        tensors = [getattr(self, name) for name in _BUFFERS]
        if self.expand and not is_compiling():
            if self._expanded is None or self._expanded.device != self.codes.device:
                self._expanded = torch.ops.scmp.expand_prepared(tensors, self.spec)
            tensors.append(self._expanded)
        return tensors

    def call_spec(self) -> str:
        """The spec as a call passes it: whole where the call may be recorded in a graph."""
        return self.spec if is_recording() else self._call_spec

    def check_knobs(self, knobs: Mapping[str, Any]) -> None:
        """Raise the ValueError of a call with other knobs than this was made for.

        Args:
            knobs: name to (value, default); a value equal to its default counts as left out.
        """
        for name, (value, default) in knobs.items():
            if value is default or value == default:
                continue
            made_for = getattr(self, name)
            if name == "config" and not isinstance(value, Mapping):
                value = json.loads(value) if value[:7] != "sha256:" else value
                made_for = made_for.digest if made_for and isinstance(value, str) else made_for
            if value != made_for:
                raise ValueError(
                    f"sc_matmul: {name} must be {made_for!r}, for which b was prepared, or left "
                    f"out, got {value!r}"
                )

    def get_extra_state(self) -> str:
        """Part of the state_dict: what the buffers were made for."""
        return self.spec

    def set_extra_state(self, state: str) -> None:
        """Take over the spec of a loaded state_dict (its buffers are taken by then)."""
        try:
            self._take_spec(state)
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(
                f"Prepared: the extra state must be the spec of a Prepared: {error!r}"
            ) from None

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs) -> None:
        # Buffers of another shape are taken over too.
        self._expanded = None
        for name in _BUFFERS:
            loaded = state_dict.get(prefix + name)
            if isinstance(loaded, torch.Tensor) and loaded.shape != getattr(self, name).shape:
                current = getattr(self, name)
                setattr(self, name, torch.empty_like(loaded, device=current.device))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, fn, recurse=True):
        # Moves, never casts: the dtypes are part of the format.
        def move(tensor):
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        return super()._apply(move, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_expanded": None}

    def extra_repr(self) -> str:
        return f"shape={self.shape}, granularity={self.granularity!r}, mode={self.mode!r}"

    def forward(self, a: torch.Tensor, **knobs: Any) -> torch.Tensor:
        """``sc_matmul(a, self, **knobs)``."""
        from scmp_kernels.sc.matmul import sc_matmul

        return sc_matmul(a, self, **knobs)


def prepare(
    b: torch.Tensor,
    granularity: str = "per_row",
    *,
    mode: str = "bipolar",
    sc_prec: int = 8,
    chunk_d: int = 0,
    group_b: int = 1,
    rng_levels: int | None = None,
    config: Mapping[str, Any] | str | None = None,
    halve_bipolar_stoc_len: bool = False,
    smooth_scales: torch.Tensor | None = None,
    expand: bool = False,
) -> Prepared:
    """Smooth and quantize operand b once, for many calls of `sc_matmul`.

    ``sc_matmul(a, prepare(b, **knobs))`` gives the bits of ``sc_matmul(a, b, **knobs)``. Call it
    outside compiled graphs. The environment's scramble settings are part of what it is made for.

    Args:
        b: (M, D) or (B, M, D), float16, bfloat16, float32 or float64; must not require grad.
        granularity, mode, sc_prec, chunk_d, group_b, rng_levels, config, halve_bipolar_stoc_len,
            smooth_scales: as in `sc_matmul`. ``group_a`` and ``stoc_len`` stay free per call.
        expand: on CUDA also keep b's bit patterns, for calls that name no ``stoc_len`` (18 bytes
            per element at 128 cycles). The CPU kernels read codes and gain nothing.

    Returns:
        Prepared.

    Raises:
        ValueError: an argument, the config or an environment variable does not fit, b requires
            grad, or the call is being compiled.
    """
    if is_compiling():
        raise ValueError(
            "prepare: call it outside compiled graphs and pass what it returns, "
            "got a call in a graph that is being compiled"
        )
    if torch.is_grad_enabled() and isinstance(b, torch.Tensor) and b.requires_grad:
        raise ValueError(
            "prepare: b must not require grad (a prepared operand has no gradient): pass "
            "b.detach() or use torch.no_grad(), got one that does"
        )
    knobs = {
        "mode": mode,
        "sc_prec": sc_prec,
        "chunk_d": chunk_d,
        "group_b": group_b,
        "rng_levels": rng_levels,
        "config": None if config is None else config_argument(config),
        "halve_bipolar_stoc_len": halve_bipolar_stoc_len,
        "smooth_scales": None if smooth_scales is None else smooth_scales.detach(),
        "expand": expand,
    }
    tensors = torch.ops.scmp.prepare(b.detach(), granularity, **knobs)
    spec = torch.ops.scmp.prepare_spec(list(b.shape), granularity, **knobs)
    return Prepared(tensors, spec, expand)
