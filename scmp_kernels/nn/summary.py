"""What of a model runs on bit streams."""

from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from scmp_kernels.nn.config import SCConfig, check_module
from scmp_kernels.nn.multihead import SCMultiheadAttention
from scmp_kernels.nn.scope import observed
from scmp_kernels.nn.smooth import call_model, evaluated
from scmp_kernels.nn.weights import SCWeight

_LAYERS = (nn.Linear, nn.Conv2d)


@dataclass
class Row:
    """A layer, or the attention in a module.

    Attributes:
        name: of the module.
        kind: its class, or "qk" and "av" of attention, or "other" for what is in neither.
        lengths: stream lengths in cycles, longest first; empty: float.
        macs: multiply-accumulates of the example; None without one.
    """

    name: str
    kind: str
    lengths: list[int]
    macs: int | None


@dataclass
class Summary:
    """What `summary` returns.

    Attributes:
        rows: of layers in the order of the model, then attention, then "other".
        macs, sc_macs: multiply-accumulates of the example, and those on bit streams; None without
            an example.
    """

    rows: list[Row]

    @property
    def macs(self) -> int | None:
        return self._sum(self.rows)

    @property
    def sc_macs(self) -> int | None:
        return self._sum([row for row in self.rows if row.lengths])

    @property
    def share(self) -> float | None:
        """sc_macs / macs, 0 to 1; None without an example or without products."""
        macs, sc_macs = self.macs, self.sc_macs
        return sc_macs / macs if macs and sc_macs is not None else None

    def _sum(self, rows: list[Row]) -> int | None:
        known = self.rows and self.rows[0].macs is not None
        return sum(row.macs or 0 for row in rows) if known else None

    def text(self) -> str:
        """The summary as a table."""
        macs = self.macs
        lines = [("name", "kind", "stream length", "MACs", "share")]
        for row in self.rows:
            counts = ("-", "-") if not macs else (str(row.macs), f"{(row.macs or 0) / macs:.1%}")
            lengths = "/".join(map(str, row.lengths)) or "float"
            lines.append((row.name, row.kind, lengths, *counts))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(
                cell.ljust(width) if i < 3 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        ]
        layers = sum(bool(row.lengths) for row in self.rows)
        table.append(f"{layers} of {len(self.rows)} rows on bit streams")
        if macs:
            table[-1] += f", {self.share:.1%} of {macs} multiply-accumulates"
        return "\n".join(table)


def summary(model: nn.Module, example_input: Any = None, verbose: bool = True) -> Summary:
    """Say what of a model runs on bit streams, at which stream length.

    Args:
        model: converted, in part or not at all.
        example_input: a batch to run the model on (a tensor, a tuple or list of arguments, a
            mapping of keyword arguments), in eval mode and without gradients: multiply-accumulates
            are counted, and attention shows. None: layers only.
        verbose: whether to print it.

    Returns:
        Summary.

    Raises:
        ValueError: model is no module.
    """
    check_module("summary", "model", model)
    layers = _layers(model)
    rows = {
        name: Row(name, type(m).__name__, _lengths(m), None if example_input is None else 0)
        for name, m in layers.items()
    }
    if example_input is not None:
        _count(model, example_input, layers, rows)
    result = Summary(list(rows.values()))
    if verbose:
        print(result.text())
    return result


def _layers(model: nn.Module) -> dict[str, Any]:
    """{name: layer}; torch's multi-head attention, which never calls its `out_proj`, is one."""
    kept = {m for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    kept = {m for m in kept if not isinstance(m, SCMultiheadAttention)}
    inside = {m.out_proj for m in kept}
    return {
        name: m
        for name, m in model.named_modules()
        if m in kept or (isinstance(m, _LAYERS) and m not in inside)
    }


def _grouped_flops(a: torch.Size, b: torch.Size, *_: Any, **__: Any) -> int:
    """Of the product of groups of rows with a matrix each, as experts of a mixture have it."""
    batch = a[0] if len(a) == len(b) == 3 else 1
    return 2 * batch * a[-2] * a[-1] * b[-1]


def _vector_flops(a: torch.Size, *_: Any, **__: Any) -> int:
    return 2 * a.numel()


def _recurrent_flops(x: torch.Size, first: Any, second: Any, *_: Any, **__: Any) -> int:
    """Of layers that are one operator, by their matrices: two, or `first`, which has biases too."""
    weights = first if isinstance(first, list) else [first, second]
    return 2 * x[:-1].numel() * sum(w.numel() for w in weights if len(w) == 2)


_MORE_PRODUCTS = {  # those that torch's counter leaves out
    torch.ops.aten._grouped_mm: _grouped_flops,
    torch.ops.aten.mv: _vector_flops,
    torch.ops.aten.dot: _vector_flops,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent_flops,
    torch.ops.aten._cudnn_rnn: _recurrent_flops,
}


def _lengths(module: nn.Module) -> list[int]:
    config = module.config if isinstance(module, SCWeight) else None
    return config.levels() if config is not None and config.enabled else []


def _count(model: nn.Module, batch: Any, layers: dict[str, Any], rows: dict) -> None:
    """Run a batch; fill in the rows of layers, and add those of attention and of the rest."""
    from torch.utils.flop_counter import FlopCounterMode  # it imports triton

    inside: list[str] = []  # names of the modules that are running

    def layer_ran(name: str):
        def ran(layer: Any, args: Any, out: torch.Tensor) -> None:
            rows[name].macs += out.numel() * layer.weight[0].numel()

        return ran

    def projected(name: str):
        def ran(module: Any, args: Any, kwargs: Any, out: Any) -> None:
            named = [kwargs[x] for x in ("query", "key", "value")[len(args) :]]
            query, key, value = list(args[:3]) + named
            inputs = 2 * query.numel() + key.numel() + value.numel()
            rows[name].macs += inputs * module.embed_dim

        return ran

    def attended(query, key, value, config: SCConfig | None) -> None:
        name = inside[-1] if inside else ""
        pairs = query.shape[:-1].numel() * key.shape[-2]
        for kind, columns in (("qk", query.shape[-1]), ("av", value.shape[-1])):
            lengths = config.levels() if config is not None else []
            row = rows.setdefault((name, kind), Row(name, kind, lengths, 0))
            row.macs += pairs * columns

    def left(*_: Any) -> None:
        inside.pop()

    hooks = [
        layer.register_forward_hook(projected(name), with_kwargs=True)
        if isinstance(layer, nn.MultiheadAttention)
        else layer.register_forward_hook(layer_ran(name))
        for name, layer in layers.items()
    ]
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda *_, name=name: inside.append(name)))
        hooks.append(module.register_forward_hook(left))
    counter = FlopCounterMode(display=False, custom_mapping=_MORE_PRODUCTS)
    try:
        # torch's own attention by plain products, which the counter sees one by one.
        with (
            evaluated(model),
            observed(attended),
            sdpa_kernel(SDPBackend.MATH),
            _no_fast_path(),
            counter,
        ):
            call_model(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    known = sum(row.macs for row in rows.values() if not row.lengths)
    other = counter.get_total_flops() // 2 - known
    if other > 0:
        rows["other"] = Row("", "other", [], other)


@contextmanager
def _no_fast_path():
    """Multi-head attention of torch by plain products."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
