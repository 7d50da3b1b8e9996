"""SmoothQuant scales of a whole model, from data."""

from collections.abc import Callable, Iterable, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from scmp_kernels.mp.progress import check_progress, progress_bar
from scmp_kernels.nn.config import check_module
from scmp_kernels.nn.conv import SCConv2d
from scmp_kernels.nn.scope import attention_of
from scmp_kernels.nn.weights import SCWeight
from scmp_kernels.quant import accumulate_act_scales, compute_smooth_scales
from scmp_kernels.sc.rng import one_line

_OWNER = "calibrate_smoothquant"


def call_model(model: nn.Module, batch: Any) -> Any:
    """``model(batch)``, with a tuple or list as arguments, a mapping as keyword arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


@contextmanager
def evaluated(model: nn.Module):
    """In eval mode, without gradients; every module's mode is restored."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _in_float(holders: list[Any]):
    """What has a config, `holders`, off for a while."""
    configs = [holder.config for holder in holders]
    try:
        for holder in holders:
            if holder.config is not None:
                holder.config = replace(holder.config, enabled=False)
        yield
    finally:
        for holder, config in zip(holders, configs, strict=True):
            holder.config = config


def calibrate_smoothquant(
    model: nn.Module,
    data: Iterable[Any],
    alpha: float = 0.5,
    *,
    eps: float = 1e-5,
    filter: Callable[[str, nn.Module], bool] | None = None,
    forward: Callable[[nn.Module, Any], Any] = call_model,
    progress: bool | None = None,
) -> dict[str, torch.Tensor]:
    """Set the `smooth_scales` of the layers of a converted model from what they see of `data`.

    The model runs in float meanwhile, in eval mode and without gradients. Layers that see no data
    and convolutions with groups keep what they have. Source: Xiao et al., SmoothQuant, ICML 2023.

    Args:
        model: with SCLinear or SCConv2d layers (`convert`).
        data: a list or another iterable of batches, each a tensor, a tuple or list of arguments, or
            a mapping of keyword arguments.
        alpha, eps: as in `quant.compute_smooth_scales`.
        filter: ``filter(name, layer)``: whether a layer gets scales; None: all.
        forward: ``forward(model, batch)`` runs a batch.
        progress: True: a tqdm bar; None: one on terminals, where tqdm is installed; False: none.

    Returns:
        {name of the layer: (D,) float32 scales}.

    Raises:
        ValueError: an argument does not fit, or a layer saw NaN or Inf; no scales are set then.
        ImportError: progress=True, and tqdm is not installed.
    """
    check_module(_OWNER, "model", model)
    check_progress(_OWNER, progress)
    if isinstance(data, (torch.Tensor, Mapping, str)) or not isinstance(data, Iterable):
        raise ValueError(f"{_OWNER}: data must be a list of batches, got {one_line(data)}")
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, SCWeight) and (filter is None or filter(name, module))
        if not (isinstance(module, SCConv2d) and module.groups > 1)
    }
    if not layers:
        raise ValueError(
            f"{_OWNER}: model must have SCLinear or SCConv2d layers (convert it first) that filter "
            "lets through, got none"
        )
    seen: dict[str, torch.Tensor] = {}

    def watch(name: str):
        def see(layer: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            x: Any  # not None: layers with groups are left out
            x = layer.lowered_rows(args[0]) if isinstance(layer, SCConv2d) else args[0].float()
            if x.numel():  # one without rows says nothing
                seen[name] = accumulate_act_scales(x, seen.get(name))

        return see

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    holders: list[Any] = [module for module in model.modules() if isinstance(module, SCWeight)]
    holders += [held for module in model.modules() if (held := attention_of(module)) is not None]
    total = len(data) if isinstance(data, Sized) else None
    bar = progress_bar(_OWNER, progress, total=total, desc="calibrating", unit="batch")
    try:
        with evaluated(model), _in_float(holders):
            for batch in data:
                forward(model, batch)
                bar.update()
    finally:
        bar.close()
        for hook in hooks:
            hook.remove()
    if not seen:
        raise ValueError(f"{_OWNER}: data must have batches that reach the layers, got none")
    found = {}
    for name, act in seen.items():
        if not bool(act.isfinite().all()):
            raise ValueError(
                f"{_OWNER}: data must be finite in every layer, got NaN or Inf in {name!r}"
            )
        weight = layers[name].weight.detach().flatten(1)
        found[name] = compute_smooth_scales(act, weight, alpha, eps)
    for name, scales in found.items():
        layers[name].set_smooth_scales(scales)
        layers[name].prepare()
    return found
