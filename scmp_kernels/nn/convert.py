"""Whole models to bit streams and back."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn
from torch.nn.utils import parametrize

from scmp_kernels.nn.config import SCConfig, check_config, check_module
from scmp_kernels.nn.conv import SCConv2d
from scmp_kernels.nn.linear import SCLinear
from scmp_kernels.nn.multihead import SCMultiheadAttention
from scmp_kernels.nn.scope import Scope, scope_of
from scmp_kernels.nn.weights import SCWeight
from scmp_kernels.sc.rng import one_line

Filter = Callable[[str, nn.Module], "bool | SCConfig | None"]

_TWINS: dict[type, Any] = {
    nn.Linear: SCLinear,
    nn.Conv2d: SCConv2d,
    nn.MultiheadAttention: SCMultiheadAttention,
}
_METHODS = ("forward", "_conv_forward", "__call__", "_call_impl")
_FAST_PATHS = {  # of torch, around the layers: the attribute that turns each off
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}


class _Plan(NamedTuple):
    """What `convert` is about to do; nothing of it is done before all of it is known to fit."""

    twins: dict[int, Any]  # by id of the layer
    swaps: list[tuple[nn.Module, str, Any]]  # parent, attribute, twin
    scopes: list[tuple[nn.Module, str, SCConfig | None]]
    fast_paths: list[tuple[nn.Module, str, Any]]  # attribute, what turns it off
    seen: set[int]


def convert(
    model: nn.Module,
    config: SCConfig = SCConfig(),  # noqa: B008  (frozen)
    filter: Filter | None = None,
    attention: SCConfig | bool = True,
) -> nn.Module:
    """Run a model on bit streams, in place: linear layers, 2D convolutions and attention.

    ``torch.nn.Linear``, ``Conv2d`` and ``MultiheadAttention`` become `SCLinear`, `SCConv2d` and
    `SCMultiheadAttention` with the same parameters: tied weights stay tied, a layer used twice
    becomes one. Subclasses do where they leave ``forward`` alone. Layers with hooks or
    parametrizations stay float.

    Other attention is what calls ``torch.nn.functional.scaled_dot_product_attention``: inside the
    model, during its forward, in the thread that called it.

    Args:
        model: to convert; must not be converted yet.
        config: SCConfig of the layers.
        filter: ``filter(name, module)`` is asked about each layer, and about each other module with
            children that is not of torch.nn, for the attention in it, inner modules deciding after
            outer ones. True: converted, SCConfig: with that one, False or None: left float.
            ``MultiheadAttention`` is one layer. None: all are converted.
        attention: SCConfig of the attention; True: `config`; False: attention stays float.

    Returns:
        model (its twin where the model itself is a layer).

    Raises:
        ValueError: an argument does not fit, a config does not fit a layer, the model is converted
            already, or its attention does not go through the function.
    """
    check_module("convert", "model", model)
    check_config("convert", config)
    if filter is not None and not callable(filter):
        raise ValueError(f"convert: filter must be a function or None, got {one_line(filter)}")
    inside: SCConfig | None
    if isinstance(attention, bool):
        inside = config if attention else None
    elif isinstance(attention, SCConfig):
        inside = attention
    else:
        raise ValueError(
            f"convert: attention must be an SCConfig, True or False, got {one_line(attention)}"
        )
    for name, module in model.named_modules():
        if _original(module) is not None or scope_of(module) is not None:
            raise ValueError(
                "convert: model must not be converted already (revert it first), "
                f"got one whose {name or type(module).__name__!r} is"
            )
    plan, choose = _Plan({}, [], [], [], set()), _Choice(filter, config, inside)
    if type(model) in _TWINS:
        return _twin(plan, "", model, choose) or model
    _walk(plan, "", model, choose, None)
    for parent, attribute, twin in plan.swaps:
        parent._modules[attribute] = twin
    for module, name, scoped in plan.scopes:
        Scope(module, name, scoped)
    for module, attribute, off in plan.fast_paths:
        module._scmp_fast_path = getattr(module, attribute)
        setattr(module, attribute, off)
    return model


def revert(model: nn.Module) -> nn.Module:
    """Undo `convert`: the modules that were there before are there again.

    They have the parameters that the model has now, and its training mode.

    Args:
        model: as `convert` returned it, or a copy; one that is not converted stays as it is.

    Returns:
        model (the float layer where the model itself is one).

    Raises:
        ValueError: model is no module, or something took the place of a module's ``forward`` since
            `convert`.
    """
    check_module("revert", "model", model)
    original = _original(model)
    if original is not None:
        return _restored(model, original)
    scopes = [scope for module in model.modules() if (scope := scope_of(module)) is not None]
    for scope in scopes:
        scope.remove()
    for module in list(model.modules()):
        path = _fast_path(module)
        if path is not None and "_scmp_fast_path" in module.__dict__:
            setattr(module, path[0], module.__dict__.pop("_scmp_fast_path"))
        for attribute, child in list(module._modules.items()):
            original = None if child is None else _original(child)
            if original is not None:
                module._modules[attribute] = _restored(child, original)
    return model


def _original(module: nn.Module) -> nn.Module | None:
    """The layer that a twin was converted from."""
    replaced = module.__dict__.get("_replaced")
    return replaced[0] if isinstance(module, tuple(_TWINS.values())) and replaced else None


def _restored(twin: Any, original: nn.Module) -> nn.Module:
    twin._hand_back(original)
    return original


class _Choice:
    """The configs of each module, by the filter: of a layer and of attention; None: float."""

    def __init__(self, filter: Filter | None, layers: SCConfig, attention: SCConfig | None) -> None:
        self.filter, self.layers, self.attention = filter, layers, attention

    def __call__(self, name: str, module: nn.Module) -> tuple[SCConfig | None, SCConfig | None]:
        answer: Any = True if self.filter is None else self.filter(name, module)
        if answer is None or answer is False:
            return None, None
        if answer is not True and not isinstance(answer, SCConfig):
            raise ValueError(
                f"convert: filter must return True, False, None or an SCConfig, for {name!r} it "
                f"returned {one_line(answer)}"
            )
        layer, attention = self.layers, self.attention
        if answer is not True:
            layer, attention = answer, None if attention is None else answer
        return layer.for_module(name), None if attention is None else attention.for_module(name)


def _walk(
    plan: _Plan, name: str, module: nn.Module, choose: _Choice, outer: SCConfig | None
) -> None:
    """Plan for a module that is no layer, and what is in it; `outer` holds for its attention."""
    plan.seen.add(id(module))
    scoped = outer
    if isinstance(module, nn.MultiheadAttention):  # one that stays as it is
        scoped = None
    elif _may_attend(module):
        scoped = choose(name, module)[1]
    if scoped is not outer or (scoped is not None and _may_attend(module)):
        plan.scopes.append((module, name, scoped))
    if scoped is not None and scoped.enabled:
        _check_attention(name, module)
    path = _fast_path(module)
    if path is not None:
        plan.fast_paths.append((module, *path))
    if isinstance(module, nn.MultiheadAttention):
        return
    for attribute, child in module._modules.items():
        if child is None:
            continue
        inner, first = f"{name}.{attribute}" if name else attribute, id(child) not in plan.seen
        kind = _layer_type(child)
        twin = None if kind is None else _twin(plan, inner, child, choose)
        if twin is not None:
            plan.swaps.append((module, attribute, twin))
        elif first and kind in (None, nn.MultiheadAttention):
            _walk(plan, inner, child, choose, scoped)


def _may_attend(module: nn.Module) -> bool:
    """Whether the filter is asked about the attention in a module that is no layer."""
    return not type(module).__module__.startswith("torch.nn.") and bool(module._modules)


def _layer_type(module: nn.Module) -> type | None:
    """The torch class that has a twin where a module computes what that does, else None."""
    base = next((kind for kind in _TWINS if isinstance(module, kind)), None)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if (
        base is None
        or isinstance(module, SCWeight)
        or "forward" in module.__dict__
        or parametrize.is_parametrized(module)
        or any(getattr(module, name) for name in hooks)
        or any(getattr(type(module), m, None) is not getattr(base, m, None) for m in _METHODS)
        or (isinstance(module, nn.MultiheadAttention) and _layer_type(module.out_proj) is None)
    ):
        return None
    return base


def _twin(plan: _Plan, name: str, layer: nn.Module, choose: _Choice) -> Any:
    """The twin of a layer, the same for all its places; None: it stays."""
    if id(layer) not in plan.seen:
        plan.seen.add(id(layer))
        kind, (config, attention) = _layer_type(layer), choose(name, layer)
        if kind is not None and config is not None:
            options = {}
            if kind is nn.MultiheadAttention:
                options = {"attention": attention or SCConfig(enabled=False)}
            try:
                twin = _TWINS[kind].from_float(layer, config, **options)
            except ValueError as error:
                raise ValueError(f"convert: {name or 'model'}: {error}") from None
            twin._replaced = (layer,)
            plan.twins[id(layer)] = twin
    return plan.twins.get(id(layer))


def _fast_path(module: nn.Module) -> tuple[str, Any] | None:
    return next((path for kind, path in _FAST_PATHS.items() if isinstance(module, kind)), None)


def _check_attention(name: str, module: nn.Module) -> None:
    """Raise the ValueError of a module whose attention is told not to go through the function."""
    told = getattr(getattr(module, "config", None), "_attn_implementation", None)
    if isinstance(told, str) and told != "sdpa":
        raise ValueError(
            "convert: model must have been made with attn_implementation='sdpa' where attention is "
            f"converted (attention=False leaves it float), got {told!r} in {name or 'model'}"
        )
    if getattr(module, "fused_attn", True) is False:
        raise ValueError(
            "convert: model must have fused_attn = True where attention is converted "
            f"(attention=False leaves it float), got False in {name}"
        )
