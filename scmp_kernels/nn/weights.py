"""What `SCLinear`, `SCConv2d` and projections share: a weight prepared once and never stale."""

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook

from scmp_kernels.nn.config import SCConfig, check_config
from scmp_kernels.sc.config import is_recording, is_transformed
from scmp_kernels.sc.prepared import Prepared, prepare

_ENVIRONMENT = ("SC_SCRAMBLE_MASKS", "SC_OWEN_MODE", "SC_DISABLE_OWEN", "SC_SCRAMBLE_RESCALE")


def _same(sources: list[torch.Tensor], aliases: list[torch.Tensor], versions: torch.Tensor) -> bool:
    """Whether `sources` are the tensors that `aliases` were made of, in the same state."""
    return [x._version for x in sources] == versions.tolist() and all(
        new.dtype == old.dtype and new.is_set_to(old)
        for new, old in zip(sources, aliases, strict=True)
    )


@torch.library.custom_op(
    "scmp_nn::check_prepared",
    mutates_args=("versions",),
    tags=(torch.Tag.cudagraph_unsafe,),
)
def _check_prepared(
    sources: list[torch.Tensor], aliases: list[torch.Tensor], versions: torch.Tensor
) -> None:
    """In a compiled graph: raise where a weight is not the one that was prepared.

    It claims to write `versions`, so that no compiler drops it; a tensor, so that none is compiled
    in. A CUDA graph would not run it again: the tag keeps it outside, and the graph around it.
    """
    if not _same(sources, aliases, versions):
        raise ValueError(
            "scmp_kernels.nn: weight and smooth_scales must be as they were prepared where a "
            "compiled graph runs, got a change since (call prepare() or eval() after one)"
        )


@_check_prepared.register_fake
def _(sources, aliases, versions):
    return None


_prepared: "weakref.WeakSet[SCWeight]" = weakref.WeakSet()
_lock = threading.RLock()


@torch._disable_dynamo  # as torch.compiler.disable, which imports the compiler at once
def _count_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """After a step: count a change of the weights that were prepared.

    Fused optimizers of torch, and those that write into ``weight.data``, do not count it.
    """
    with _lock:
        sources = {id(x) for layer in _prepared for x in layer._sources()}
    if not sources:
        return
    params = (p for group in optimizer.param_groups for p in group["params"])
    stepped = [p for p in params if id(p) in sources and p.grad is not None]
    if stepped:
        torch.autograd.graph.increment_version(stepped)


register_optimizer_step_post_hook(_count_step)


class _Held(NamedTuple):
    """A Prepared and what it was made of. The aliases keep addresses from being used again."""

    prepared: Prepared
    aliases: list[torch.Tensor]
    versions: torch.Tensor
    environment: list[str | None]


if TYPE_CHECKING:

    class _Layer(torch.nn.Module):
        """What the torch layer behind the mixin has."""

        weight: torch.Tensor
        bias: Any
        smooth_scales: torch.Tensor | None
else:
    _Layer = object

_Twin = TypeVar("_Twin", bound="SCWeight")


class SCWeight(_Layer):
    """Mixin before a torch layer: `config`, `smooth_scales` and the prepared weight.

    Attributes:
        config: SCConfig; may be set.
        smooth_scales: (D,) float32 buffer or None, D the columns of the product.
    """

    def _setup(self, config: SCConfig, smooth_scales: torch.Tensor | None) -> None:
        self._held: _Held | None = None
        self.register_buffer("smooth_scales", None)
        self.config = config
        self.set_smooth_scales(smooth_scales)

    @property
    def config(self) -> SCConfig:
        """What the layer runs with."""
        return self._config

    @config.setter
    def config(self, config: SCConfig) -> None:
        self._check(check_config(type(self).__name__, config))
        self._config, self._held = config, None

    def _check(self, config: SCConfig) -> None:
        """Raise the ValueError of a config that does not fit the layer."""
        if config.granularity == "per_head":
            raise ValueError(
                f"{type(self).__name__}: granularity must be 'per_row' or 'per_tensor', "
                "got 'per_head'"
            )

    def _columns(self) -> int:
        """D, the columns of the product."""
        raise NotImplementedError

    def set_smooth_scales(self, scales: torch.Tensor | None) -> None:
        """Set the SmoothQuant scales.

        Args:
            scales: (D,) positive, or None.

        Raises:
            ValueError: the shape does not fit.
        """
        shape = (self._columns(),)
        if scales is not None and (not isinstance(scales, torch.Tensor) or scales.shape != shape):
            got = tuple(scales.shape) if isinstance(scales, torch.Tensor) else scales
            raise ValueError(
                f"{type(self).__name__}: smooth_scales must have shape (D,) = {shape}, got {got}"
            )
        if scales is not None:
            scales = scales.detach().to(self.weight.device, torch.float32, copy=True)
        self.smooth_scales, self._held = scales, None

    @classmethod
    def _take_over(cls, twin: Any, new: _Twin, smooth_scales: torch.Tensor | None) -> _Twin:
        """`new` with the parameters and the mode of `twin`, and the scales, prepared."""
        new.weight, new.bias = twin.weight, twin.bias
        torch.nn.Module.train(new, twin.training)
        new.set_smooth_scales(smooth_scales)
        new.prepare()
        return new

    def _hand_back(self, original: Any) -> None:
        """Give the layer that `_take_over` took from the parameters that there are now."""
        original.weight, original.bias = self.weight, self.bias
        original.train(self.training)

    # --- the prepared weight ---------------------------------------------------------------------

    def _preparable(self) -> bool:
        """Whether `prepare` takes the weight, and its changes can be noticed."""
        sources = self._sources()
        return not any(is_transformed(x) or x.is_meta or x.is_inference() for x in sources)

    def _sources(self) -> list[torch.Tensor]:
        return [x for x in (self.weight, self.smooth_scales) if x is not None]

    def _prepare_knobs(self) -> dict[str, Any]:
        return {**self.config.prepared_knobs(), "smooth_scales": self.smooth_scales}

    def prepare(self) -> None:
        """Quantize the weight now, where it is not yet or has changed.

        Eager calls and ``eval()`` do so by themselves; a compiled graph cannot. Writes into
        ``weight.data`` leave no trace in torch: set `config` again after one.

        Raises:
            ValueError: the weight and the config do not fit, or the call is being compiled.
        """
        if self.config.enabled and self._preparable():
            self._current()

    def _current(self) -> Prepared:
        """The Prepared of the weight as it is."""
        sources, environment = self._sources(), [os.environ.get(name) for name in _ENVIRONMENT]
        held = self._held
        if not (
            held is not None
            and held.environment == environment
            and _same(sources, held.aliases, held.versions)
        ):
            self._held = None
            with torch.inference_mode(False), torch.no_grad():
                self._held = held = _Held(
                    prepare(self.weight, **self._prepare_knobs()),
                    [x.detach() for x in sources],
                    torch.tensor([x._version for x in sources]),
                    environment,
                )
            with _lock:
                _prepared.add(self)
        return held.prepared

    def _operand(self) -> tuple[torch.Tensor | Prepared, dict[str, Any]]:
        """What goes into the product, and the knobs that it still needs.

        The weight itself where it needs a gradient or is not tracked, where the call is exported or
        traced, and in a compiled graph where nothing is prepared.
        """
        trained = torch.is_grad_enabled() and self.weight.requires_grad
        compiling = is_compiling() and not torch.compiler._is_exporting_flag  # Dynamo: no function
        if compiling and not trained and self._held is not None:
            _check_prepared(self._sources(), self._held.aliases, self._held.versions)
            return self._held.prepared, {}
        if trained or is_recording() or not self._preparable():
            return self.weight, self._prepare_knobs()
        return self._current(), {}

    # --- what torch.nn.Module does ---------------------------------------------------------------

    def train(self, mode: bool = True):
        """As of any module; ``eval()`` also prepares the weight."""
        super().train(mode)
        if not mode:
            self.prepare()
        return self

    def _apply(self, fn, recurse=True):
        scales = self.smooth_scales
        super()._apply(fn, recurse)
        if scales is not None and self.smooth_scales.dtype != scales.dtype:  # never cast
            self.smooth_scales = scales.to(self.smooth_scales.device)
        self._held = None
        if not self.training:
            self.prepare()
        return self

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        loaded = state_dict.get(prefix + "smooth_scales")
        if loaded is not None and self.smooth_scales is None:
            # Of the right shape: torch tells of another.
            self.smooth_scales = self.weight.new_ones(self._columns(), dtype=torch.float32)
        super()._load_from_state_dict(state_dict, prefix, *args)
        if not self.training:
            self.prepare()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def extra_repr(self) -> str:
        smooth = "" if self.smooth_scales is None else ", smooth_scales"
        return f"{super().extra_repr()}, {self.config}{smooth}"
