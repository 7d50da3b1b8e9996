"""Recording the products of a converted model, to calibrate its mixed precision."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from scmp_kernels.mp import CalibrationRecorder
from scmp_kernels.nn.config import SCConfig, check_module, joined
from scmp_kernels.nn.conv import SCConv2d
from scmp_kernels.nn.scope import Scope, attention_of
from scmp_kernels.nn.smooth import evaluated
from scmp_kernels.nn.weights import SCWeight
from scmp_kernels.sc.rng import one_line

_OWNER = "record_products"


@dataclass(frozen=True, repr=False)
class _Recording(SCConfig):
    """A config whose products are float and go to a recorder."""

    recorder: Any = None

    def record(self, a: torch.Tensor, b: torch.Tensor, product: str) -> torch.Tensor:
        knobs = {**self.prepared_knobs(), "group_a": self.group_a}
        return self.recorder.record(joined(self.operator, product), a, b, **knobs)


@contextmanager
def record_products(model: nn.Module, recorder: CalibrationRecorder) -> Iterator[nn.Module]:
    """Context manager: forwards of a converted model run in float and record every product.

    What `mp.calibrate_thresholds` makes of the records is a table for an `mp.AdaptiveMPConfig` with
    which the same model can be converted: operators have the names that `convert` gives them. The
    products are measured with the modules' own knobs and SmoothQuant scales; stream lengths and
    `mp` of their configs do not enter. Convolutions with groups run in float too and are not
    recorded: no config classifies their rows. The model is in eval mode, without gradients.

    Args:
        model: as `convert` returned it, modules with granularity "per_row" and mode "bipolar",
            attention without `chunk_d`.
        recorder: CalibrationRecorder; each call of a module is a call of it.

    Yields:
        model.

    Raises:
        ValueError: an argument does not fit, there is nothing to record, or, during a forward, a
            module's knobs do not allow lengths by row.
    """
    check_module(_OWNER, "model", model)
    if not isinstance(recorder, CalibrationRecorder):
        raise ValueError(
            f"{_OWNER}: recorder must be a CalibrationRecorder, got {one_line(recorder)}"
        )
    layers = {
        name: m for name, m in model.named_modules() if isinstance(m, SCWeight) and m.config.enabled
    }
    attending = {
        id(held): (held.name if isinstance(held, Scope) else name, held)
        for name, m in model.named_modules()
        if (held := attention_of(m)) is not None and held.config is not None and held.config.enabled
    }.values()
    if not layers and not attending:
        raise ValueError(f"{_OWNER}: model must be converted, got nothing on bit streams in it")
    recorded = {
        name: layer
        for name, layer in layers.items()
        if not (isinstance(layer, SCConv2d) and layer.groups > 1)
    }
    if not recorded and not attending:
        raise ValueError(
            f"{_OWNER}: model must have more than convolutions with groups on bit streams, whose "
            f"rows no config classifies, got {', '.join(map(repr, layers))}"
        )

    def recording(name: str, config: SCConfig):
        operator = config.operator or name
        knobs = {**config.prepared_knobs(), "group_a": config.group_a}

        def hook(layer: SCWeight, args: tuple[torch.Tensor, ...], _: Any) -> None:
            x = args[0]
            if isinstance(layer, SCConv2d):
                rows = layer.lowered_rows(x)
                assert rows is not None  # without groups
            else:
                rows = x.reshape(-1, x.shape[-1])
            weight = layer.weight.detach().flatten(1)
            recorder.record(operator, rows, weight, smooth_scales=layer.smooth_scales, **knobs)

        return hook

    holders: list[Any] = [*layers.values(), *(held for _, held in attending)]
    configs = [(holder, holder.config) for holder in holders]
    hooks = []
    try:
        for name, layer in recorded.items():
            hooks.append(layer.register_forward_hook(recording(name, layer.config)))
        for layer in layers.values():
            layer.config = replace(layer.config, enabled=False)
        for name, held in attending:
            knobs = {f.name: getattr(held.config, f.name) for f in fields(SCConfig)}
            knobs |= {"operator": knobs["operator"] or name, "recorder": recorder}
            held.config = _Recording(**knobs)
        with evaluated(model):
            yield model
    finally:
        for hook in hooks:
            hook.remove()
        for holder, config in configs:
            holder.config = config
        for layer in layers.values():
            layer.prepare()
