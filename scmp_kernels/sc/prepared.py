"""Operand b quantized once: for weights that meet many activations."""

import json
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.compiler import is_compiling

from scmp_kernels.sc.config import StreamConfig, config_argument, is_recording, is_transformed
from scmp_kernels.sc.lengths import longest_stream
from scmp_kernels.sc.rng import one_line

_BUFFERS = ("codes", "scales", "zero_points", "level_sums", "tensor_affine", "smooth_scales")
_DEFAULTS = {  # of a call's knobs that must be those of `prepare`
    "granularity": "per_row",
    "mode": "bipolar",
    "sc_prec": 8,
    "chunk_d": 0,
    "group_b": 1,
    "rng_levels": None,
    "config": None,
    "halve_bipolar_stoc_len": False,
    "groups": 1,
}
_KNOBS = tuple(name for name in _DEFAULTS if name not in ("config", "groups"))


def _parse_spec(spec: Any) -> tuple[dict[str, Any], StreamConfig | None]:
    """The fields of a spec and its config; a ValueError where it is none."""
    try:
        fields = json.loads(spec)
        if not isinstance(fields, dict):
            raise ValueError(f"a JSON object is needed, got {one_line(fields)}")
        missing = [name for name in (*_KNOBS, "shape", "config") if name not in fields]
        if missing:
            raise ValueError(f"without {missing[0]} here")
        for name in ("shape", "kernel"):
            sizes = fields.get(name, [])
            if not isinstance(sizes, list) and not (name == "kernel" and sizes is None):
                raise ValueError(f"{name} must be a list, got {one_line(sizes)}")
        text = fields["config"]
        return fields, None if text is None else StreamConfig(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"Prepared: the extra state must be the spec of a Prepared: {reason}"
        ) from None


class Prepared(nn.Module):
    """An operand as `prepare` returns it, for `sc_matmul` in b's or `sc_conv2d` in weight's place.

    Its buffers hold a form that every device can use, so it moves with ``.to()``, pickles,
    deep-copies and lives in a state_dict; casts leave them as they are. `spec` (JSON) says what it
    was made for and is the state_dict's extra state.

    Attributes:
        shape: (M, D) or (B, M, D) of b; of a convolution's weight what it lowers to:
            (Cout, Cin * kh * kw), with groups (groups, Cout / groups, Cin / groups * kh * kw).
        kernel: (kh, kw) of a convolution's weight, else None.
        groups: of a convolution's weight, else 1.
        granularity, mode, sc_prec, chunk_d, group_b, rng_levels, halve_bipolar_stoc_len, config:
            the knobs it was made for (config: dict or None).
        expand: whether it keeps its bit patterns for calls of the default length too.
        spec: str, JSON.
        codes: int16 of b's shape, sign times code.
        scales: float32 (B, chunks, M). zero_points, level_sums: float32 (B, M) where unipolar.
        tensor_affine: float64 (2,), scale and zero point, where per_tensor.
        smooth_scales: float32 (D,). Buffers that do not apply are empty.
    """

    granularity: str
    mode: str
    sc_prec: int
    chunk_d: int
    group_b: int
    rng_levels: int | None
    halve_bipolar_stoc_len: bool
    codes: torch.Tensor

    def __init__(self, tensors: list[torch.Tensor], spec: str, expand: bool) -> None:
        super().__init__()
        for name, tensor in zip(_BUFFERS, tensors, strict=False):
            self.register_buffer(name, tensor)
        self.expand = expand
        self._expanded, self._expanded_from = None, None
        if len(tensors) > len(_BUFFERS) and not is_transformed(self.codes):
            self._expanded, self._expanded_from = tensors[len(_BUFFERS)], self._codes_version()
        self._take_spec(spec)

    def _take_spec(self, spec: str) -> None:
        """Read the knobs off `spec`; nothing is taken where it is malformed."""
        fields, config = _parse_spec(spec)
        # A call passes the config by its digest; this object keeps it alive.
        call_spec = spec
        if config is not None:
            call_spec = json.dumps({**fields, "config": config.digest})
        for name in _KNOBS:
            setattr(self, name, fields[name])
        self.shape = tuple(fields["shape"])
        self.kernel = tuple(fields.get("kernel") or ()) or None
        self.groups = self.shape[0] if self.kernel and len(self.shape) == 3 else 1
        self.spec, self.config, self._call_spec = spec, config, call_spec

    @property
    def tensors(self) -> list[torch.Tensor]:
        """What the operator takes as b."""
        # Without nn.Module's look-up, which costs more than a kernel launch.
        buffers = cast(dict[str, torch.Tensor], self._buffers)
        tensors = [buffers[name] for name in _BUFFERS]
        if self.expand and not (is_compiling() or is_transformed(self.codes)):
            tensors.append(self._current_bits(tensors))
        return tensors

    def _codes_version(self) -> tuple[int, int | None]:
        """What changes when the codes do."""
        codes = self.codes
        return codes.data_ptr(), None if codes.is_inference() else codes._version

    def _current_bits(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The expanded bits of the buffers as they are: rebuilt after a move, a load, a change."""
        if self._expanded is not None and self._expanded_from == self._codes_version():
            return self._expanded
        on_cuda = self.codes.is_cuda
        if on_cuda and torch.cuda.is_current_stream_capturing():
            raise ValueError(
                "sc_matmul: the expanded bits of the prepared b are not built yet and cannot be "
                "during CUDA graph capture; make the same call once before capturing"
            )
        bits, old = torch.ops.scmp.expand_prepared(tensors, self.spec), self._expanded
        if old is not None and old.device == bits.device and old.shape == bits.shape:
            bits = old.copy_(bits)  # in place: a captured graph may read it
        if on_cuda:  # from here on every stream may read them
            torch.cuda.current_stream(self.codes.device).synchronize()
        self._expanded, self._expanded_from = bits, self._codes_version()
        return bits

    def longest_stream(self) -> int:
        """The most cycles that a call's streams can have."""
        return longest_stream(self.sc_prec, self.mode, self.halve_bipolar_stoc_len)

    def call_spec(self) -> str:
        """The spec as a call passes it: whole where the call may be recorded in a graph."""
        return self.spec if is_recording() else self._call_spec

    def check_knobs(
        self, op: str, knobs: Mapping[str, Any], smooth_scales: torch.Tensor | None
    ) -> None:
        """Raise the ValueError of a call with other knobs than this was made for.

        Args:
            op: the operator's name, for errors.
            knobs: name to value; one equal to its default in `prepare` counts as left out.
            smooth_scales: the call's, which must be None.
        """
        if smooth_scales is not None:
            raise ValueError(
                f"{op}: smooth_scales must be None with a prepared operand, which holds its own, "
                "got a value"
            )
        for name, value in knobs.items():
            default = _DEFAULTS[name]
            if value is default or (type(value) is type(default) and value == default):
                continue
            made_for = getattr(self, name)
            if name == "config":
                same = self._same_config(value)
            else:
                expected = made_for
                if name == "rng_levels" and made_for is None:  # what None stands for
                    expected = self.longest_stream()
                same = type(value) is type(expected) and value == expected
            if not same:
                raise ValueError(
                    f"{op}: {name} must be {one_line(made_for)}, for which the operand was "
                    f"prepared, or left out, got {one_line(value)}"
                )

    def _same_config(self, value: Any) -> bool:
        """Whether a call's config, in any of its forms, is the one this was made for."""
        text = config_argument(value)  # refuses what no call takes
        if text is None or self.config is None:
            return False
        if text.startswith("sha256:"):
            return text == self.config.digest
        try:
            return json.loads(text) == self.config
        except (ValueError, RecursionError):
            return False

    def get_extra_state(self) -> str:
        """Part of the state_dict: what the buffers were made for."""
        return self.spec

    def set_extra_state(self, state: str) -> None:
        """Take over the spec of a loaded state_dict (its buffers are taken by then)."""
        self._take_spec(state)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        # All or nothing: buffers without their spec, or beside another's, would compute nonsense.
        wanted = [prefix + name for name in (*_BUFFERS, "_extra_state")]
        missing = [name for name in wanted if name not in state_dict]
        if missing:
            missing_keys.extend(missing)
            return
        _parse_spec(state_dict[prefix + "_extra_state"])
        assign = local_metadata.get("assign_to_params_buffers", False)
        for name in _BUFFERS:
            loaded, current = state_dict[prefix + name], getattr(self, name)
            if not isinstance(loaded, torch.Tensor):
                error_msgs.append(
                    f"Prepared: {prefix}{name} must be a tensor, got {one_line(loaded)}"
                )
                return
            if loaded.is_meta and not current.is_meta and not assign:
                error_msgs.append(f"Prepared: {prefix}{name} must have values, got a meta tensor")
                return
        for name in _BUFFERS:  # those of another shape are taken over too
            loaded, current = state_dict[prefix + name], getattr(self, name)
            if loaded.shape != current.shape:
                setattr(self, name, torch.empty_like(loaded, device=current.device))
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def _apply(self, fn, recurse=True):
        # Moves, never casts: the dtypes are part of the format.
        def move(tensor):
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, recurse)
        if self._expanded is not None and self._expanded.device != self.codes.device:
            self._expanded = None
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_expanded": None}

    def extra_repr(self) -> str:
        return f"shape={self.shape}, granularity={self.granularity!r}, mode={self.mode!r}"

    def forward(self, a: torch.Tensor, **knobs: Any) -> torch.Tensor:
        """``sc_matmul(a, self, **knobs)``; ``sc_conv2d`` where it is a convolution's weight."""
        from scmp_kernels.sc import sc_conv2d, sc_matmul

        return sc_matmul(a, self, **knobs) if self.kernel is None else sc_conv2d(a, self, **knobs)


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
    groups: int = 1,
) -> Prepared:
    """Smooth and quantize operand b once, for many calls of `sc_matmul` or `sc_conv2d`.

    ``sc_matmul(a, prepare(b, **knobs))`` gives the bits of ``sc_matmul(a, b, **knobs)``, and
    ``sc_conv2d(x, prepare(weight, **knobs))`` those of ``sc_conv2d(x, weight, **knobs)``. Call it
    outside compiled graphs. The environment's scramble settings are part of what it is made for.

    Args:
        b: (M, D) or (B, M, D), or a convolution's weight (Cout, Cin / groups, kh, kw); float16,
            bfloat16, float32 or float64; must not require grad.
        granularity, mode, sc_prec, chunk_d, group_b, rng_levels, config, halve_bipolar_stoc_len,
            smooth_scales: as in `sc_matmul`. ``group_a`` and stream lengths stay free.
        expand: on CUDA also keep b's bit patterns, for calls that name no ``stoc_len`` (18 bytes
            per element at 128 cycles). The CPU kernels read codes and gain nothing.
        groups: groups of channels of a convolution's weight. More than 1 needs granularity
            "per_row", ``chunk_d`` 0 and no ``smooth_scales``.

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
    for name, tensor in (("b", b), ("smooth_scales", smooth_scales)):
        if not isinstance(tensor, torch.Tensor) and (name == "b" or tensor is not None):
            raise ValueError(f"prepare: {name} must be a tensor, got {one_line(tensor)}")
    if torch.is_grad_enabled() and b.requires_grad:
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
        "groups": groups,
    }
    tensors = torch.ops.scmp.prepare(b.detach(), granularity, **knobs)
    spec = torch.ops.scmp.prepare_spec(list(b.shape), granularity, **knobs)
    return Prepared(tensors, spec, expand)
