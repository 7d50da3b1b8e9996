"""Multi-head attention on bit streams."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from scmp_kernels.nn.attention import attention_and_weights, sc_scaled_dot_product_attention
from scmp_kernels.nn.config import SCConfig, check_config, check_module
from scmp_kernels.nn.linear import SCLinear
from scmp_kernels.nn.projection import PROJECTIONS, SCProjection
from scmp_kernels.nn.scope import OwnAttention, announced

_OWNER = "SCMultiheadAttention"


class SCMultiheadAttention(nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` with all products on bit streams.

    `q_proj`, `k_proj`, `v_proj` and `out_proj` are `SCLinear` layers on the parameters of the torch
    module, under their names in the state_dict; the attention is `sc_scaled_dot_product_attention`.
    An `operator` of a config gets ".q_proj", ..., ".out_proj", ".qk" and ".av" added to it.

    Args:
        embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first,
            device, dtype: as in ``torch.nn.MultiheadAttention``.
        config: SCConfig of the projections, granularity "per_row" or "per_tensor".
        attention: SCConfig of the attention; None: `config`.

    Raises:
        ValueError: a config does not fit.
    """

    q_proj: SCProjection
    k_proj: SCProjection
    v_proj: SCProjection
    out_proj: SCLinear  # type: ignore[assignment]
    _scmp_attention: OwnAttention

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        config: SCConfig = SCConfig(),  # noqa: B008  (frozen)
        attention: SCConfig | None = None,
    ) -> None:
        extras = (bias, add_bias_kv, add_zero_attn, kdim, vdim)
        super().__init__(embed_dim, num_heads, dropout, *extras, batch_first, device, dtype)
        check_config(_OWNER, config)
        self._qkv_same_embed_dim = False  # or torch's encoder layers would go around the module
        self.attention_config = config if attention is None else attention
        self.out_proj = SCLinear.from_float(self.out_proj, config.for_part("out_proj"))
        for index, name in enumerate(PROJECTIONS):
            setattr(self, name, SCProjection(self, index, config.for_part(name)))

    @classmethod
    def from_float(
        cls,
        module: nn.MultiheadAttention,
        config: SCConfig = SCConfig(),  # noqa: B008
        attention: SCConfig | None = None,
    ) -> "SCMultiheadAttention":
        """The twin of a ``torch.nn.MultiheadAttention``: it has the same parameters, not copies.

        Args:
            module: the float module.
            config, attention: as of the class.

        Raises:
            ValueError: an argument does not fit.
        """
        check_module(f"{_OWNER}.from_float", "module", module, nn.MultiheadAttention)
        has_bias, has_bias_kv = module.in_proj_bias is not None, module.bias_k is not None
        extras = (has_bias, has_bias_kv, module.add_zero_attn, module.kdim, module.vdim)
        new = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            *extras,
            module.batch_first,
            "meta",
            config=config,
            attention=attention,
        )
        _move_parameters(module, new)
        SCLinear._take_over(module.out_proj, new.out_proj, None)
        new.train(module.training)
        for name in PROJECTIONS:
            getattr(new, name).prepare()
        return new

    def _hand_back(self, original: nn.MultiheadAttention) -> None:
        """Give the module that `from_float` took the parameters that there are now."""
        _move_parameters(self, original)
        self.out_proj._hand_back(original.out_proj)
        original.train(self.training)

    @property
    def attention_config(self) -> SCConfig:
        """What the attention runs with; may be set."""
        return self._scmp_attention.config

    @attention_config.setter
    def attention_config(self, config: SCConfig) -> None:
        self._scmp_attention = OwnAttention(check_config(_OWNER, config))

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention between the projections, as of ``torch.nn.MultiheadAttention``.

        Args:
            query: (L, B, embed_dim), with `batch_first` (B, L, embed_dim), or (L, embed_dim).
            key, value: (S, B, kdim) and (S, B, vdim), or in the form of query's.
            key_padding_mask: (B, S), or (S,) without batch: bool (True is left out) or float
                (added).
            need_weights: whether to return the attention too.
            attn_mask: (L, S) or (B * num_heads, L, S): bool (True is left out) or float (added).
            average_attn_weights: whether to average the attention over the heads.
            is_causal: says of `attn_mask` that it is causal; needs one.

        Returns:
            query's shape and dtype, zeros before `out_proj` for a query without any key; and
            (B, L, S), or (B, num_heads, L, S) of each head, without B as query, or None. With
            `add_bias_kv` and `add_zero_attn` there is a key more each.

        Raises:
            ValueError: an argument or the config does not fit, or, in a compiled graph, a weight
                changed since it was prepared.
        """
        self._check_inputs(query, key, value)
        batched, first = query.dim() == 3, self.batch_first or query.dim() == 2
        length, batch = query.shape[-2 if first else 0], query.shape[0 if first else 1]
        sizes = (batch if batched else 1, length, key.shape[-2 if first else 0])
        mask = self._mask(attn_mask, key_padding_mask, sizes, batched, query)
        if is_causal and attn_mask is None:
            raise ValueError(f"{_OWNER}: attn_mask must be given with is_causal=True, got None")
        q, k, v = (
            self._heads(project(x), first, batched, extra)
            for project, x, extra in (
                (self.q_proj, query, ()),
                (self.k_proj, key, (self.bias_k,)),
                (self.v_proj, value, (self.bias_v,)),
            )
        )
        dropout, config = self.dropout if self.training else 0.0, self.attention_config
        announced(q, k, v, config)
        weights: torch.Tensor | None = None
        if need_weights:
            y, weights = attention_and_weights(q, k, v, mask, dropout, config=config)
            weights = weights.to(query.dtype)
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        else:
            y = sc_scaled_dot_product_attention(q, k, v, mask, dropout, config=config)
        y = y.transpose(1, 2).flatten(2)
        y = y if first else y.transpose(0, 1)
        return self.out_proj(y if batched else y.squeeze(0)), weights

    def _heads(self, x: torch.Tensor, first: bool, batched: bool, more: tuple) -> torch.Tensor:
        """(B, num_heads, L, head_dim) of a projected input; `more`: the bias of keys or values."""
        x = x if batched else x.unsqueeze(0)
        x = x if first else x.transpose(0, 1)
        if more and more[0] is not None:
            x = torch.cat((x, more[0].to(x.dtype).expand(x.shape[0], 1, -1)), 1)
        x = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return F.pad(x, (0, 0, 0, 1)) if more and self.add_zero_attn else x

    def _mask(
        self,
        attn_mask: torch.Tensor | None,
        key_padding_mask: torch.Tensor | None,
        sizes: tuple[int, int, int],
        batched: bool,
        query: torch.Tensor,
    ) -> torch.Tensor | None:
        """Both masks as one to be added, broadcastable to (B, num_heads, L, S), in query's dtype.

        `sizes` are B, L and S.
        """
        batch, length, keys = sizes
        shapes: dict[str, Any] = {
            "attn_mask": ((length, keys), (batch * self.num_heads, length, keys)),
            "key_padding_mask": ((batch, keys),) if batched else ((keys,),),
        }
        merged = None
        for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
            if mask is None:
                continue
            if tuple(mask.shape) not in shapes[name]:
                allowed = " or ".join(map(str, shapes[name]))
                raise ValueError(
                    f"{_OWNER}: {name} must have shape {allowed}, got {tuple(mask.shape)}"
                )
            if not (mask.dtype == torch.bool or mask.is_floating_point()):
                raise ValueError(f"{_OWNER}: {name} must be bool or float, got {mask.dtype}")
            if mask.dtype == torch.bool:
                zeros = torch.zeros_like(mask, dtype=query.dtype)
                mask = zeros.masked_fill(mask, -math.inf)
            mask = mask.to(query.dtype)
            if name == "key_padding_mask":
                mask = mask.view(batch, 1, 1, keys)
            elif mask.dim() == 3:
                mask = mask.unflatten(0, (batch, self.num_heads))
            merged = mask if merged is None else merged + mask
        more = (self.bias_k is not None) + self.add_zero_attn
        return F.pad(merged, (0, more)) if merged is not None and more else merged

    def _check_inputs(self, query, key, value) -> None:
        columns = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        for (name, size), x in zip(columns.items(), (query, key, value), strict=True):
            if x.is_nested:
                raise ValueError(f"{_OWNER}: {name} must not be nested, got a nested tensor")
            if x.dim() not in (2, 3) or x.dim() != query.dim() or x.shape[-1] != size:
                raise ValueError(
                    f"{_OWNER}: {name} must have 2 or 3 dimensions, as query, the last of {size}, "
                    f"got {tuple(x.shape)}"
                )
        batch = 0 if self.batch_first else 1
        if query.dim() == 3 and key.shape[batch] != query.shape[batch]:
            raise ValueError(
                f"{_OWNER}: key must have a batch of {query.shape[batch]} as query, "
                f"got {tuple(key.shape)}"
            )
        if value.shape[:-1] != key.shape[:-1]:
            raise ValueError(
                f"{_OWNER}: value must have as many entries and positions as key, "
                f"{tuple(key.shape[:-1])}, got {tuple(value.shape)}"
            )

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse=False)  # before the projections, which prepare what is here
        for child in self.children() if recurse else ():
            child._apply(fn)
        return self

    def extra_repr(self) -> str:
        return f"{self.embed_dim}, {self.num_heads}, attention={self.attention_config}"


def _move_parameters(source: nn.Module, target: nn.Module) -> None:
    """Give a module those of another that are not in its submodules."""
    for name, parameter in source._parameters.items():
        if parameter is not None:
            setattr(target, name, parameter)
