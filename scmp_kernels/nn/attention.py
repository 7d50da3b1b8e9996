"""Attention on bit streams."""

import math

import torch
from torch.nn import functional as F

from scmp_kernels.nn.config import SCConfig, check_config
from scmp_kernels.sc.matmul import sc_matmul

_float_attention = F.scaled_dot_product_attention  # which `convert` may replace
_OWNER = "sc_scaled_dot_product_attention"


def sc_scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    config: SCConfig = SCConfig(),  # noqa: B008  (frozen)
) -> torch.Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` with both products by `sc_matmul`.

    ``softmax(q @ k.T * scale + mask) @ v``: a of the first product is the query, of the second the
    attention; each head is an entry of a batch. Scale, mask, softmax and dropout are float32.

    Args:
        query: (..., Hq, L, E), float16, bfloat16, float32 or float64.
        key: (..., H, S, E), H = Hq; with `enable_gqa` a divisor of Hq.
        value: (..., H, S, Ev).
        attn_mask: bool (True takes part) or float (added), broadcastable to (..., Hq, L, S).
        dropout_p: probability of dropping an entry of the attention.
        is_causal: only positions s <= l take part; excludes `attn_mask`.
        scale: None: ``E**-0.5``.
        enable_gqa: query heads in groups of Hq / H share a key and a value head.
        config: SCConfig; with `chunk_d` there is one call per head. An MPConfig classifies by
            `qk_metric` and `av_metric` the rows of all heads together.

    Returns:
        (..., Hq, L, Ev) in query's dtype; zeros for a query without any key.

    Raises:
        ValueError: an argument does not fit.
    """
    check_config(_OWNER, config)
    if not config.enabled:
        return _float_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return attention_and_weights(
        query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, config=config
    )[0]


def attention_and_weights(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    config: SCConfig,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`sc_scaled_dot_product_attention`, and the (..., Hq, L, S) that its second product takes."""
    _check(query, key, value, attn_mask, is_causal, enable_gqa)
    scale = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    scores = _product(query, key, config, "qk") * scale
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    elif attn_mask is not None:
        _check_mask(attn_mask, scores)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = scores.softmax(-1)
    if attn_mask is not None:
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0)
    if dropout_p:
        weights = F.dropout(weights, dropout_p)
    return _product(weights, value.mT, config, "av").to(query.dtype), weights


def _check(query, key, value, attn_mask, is_causal, enable_gqa) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        least = 3 if enable_gqa else 2
        if x.dim() < least:
            raise ValueError(
                f"{_OWNER}: {name} must have at least {least} dimensions, got {tuple(x.shape)}"
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"{_OWNER}: key must have shape (..., S, E) with E = {query.shape[-1]} as query, "
            f"got {tuple(key.shape)}"
        )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"{_OWNER}: value must have shape (..., S, Ev) with S = {key.shape[-2]} as key, "
            f"got {tuple(value.shape)}"
        )
    for name, x in (("key", key), ("value", value)):
        if enable_gqa and (x.shape[-3] == 0 or query.shape[-3] % x.shape[-3]):
            raise ValueError(
                f"{_OWNER}: {name} must have a number of heads that divides query's, "
                f"{query.shape[-3]}, got {x.shape[-3]}"
            )
        try:
            torch.broadcast_shapes(_batch(query, enable_gqa), _batch(x, enable_gqa))
        except RuntimeError:
            raise ValueError(
                f"{_OWNER}: {name} must have batch sizes as query, {tuple(query.shape[:-2])}, "
                f"got {tuple(x.shape[:-2])}"
            ) from None
    if attn_mask is not None and is_causal:
        raise ValueError(f"{_OWNER}: attn_mask must be None with is_causal=True, got a mask")
    if attn_mask is not None and not (
        attn_mask.dtype == torch.bool or attn_mask.is_floating_point()
    ):
        raise ValueError(f"{_OWNER}: attn_mask must be bool or float, got {attn_mask.dtype}")


def _check_mask(attn_mask: torch.Tensor, scores: torch.Tensor) -> None:
    try:
        fits = torch.broadcast_shapes(attn_mask.shape, scores.shape) == scores.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{_OWNER}: attn_mask must have a shape that broadcasts to (..., Hq, L, S) = "
            f"{tuple(scores.shape)}, got {tuple(attn_mask.shape)}"
        )
    if attn_mask.device != scores.device:
        raise ValueError(
            f"{_OWNER}: attn_mask must be on query's device {scores.device}, got {attn_mask.device}"
        )


def _batch(x: torch.Tensor, enable_gqa: bool) -> torch.Size:
    return x.shape[: -3 if enable_gqa else -2]


def _product(a: torch.Tensor, b: torch.Tensor, config: SCConfig, name: str) -> torch.Tensor:
    """``a @ b.mT``: (..., Ha, N, D) by (..., Hb, M, D), Hb a divisor of Ha or either 1."""
    rows = a.shape[-2]
    shared = a.shape[-3] // b.shape[-3] if min(a.dim(), b.dim()) > 2 and b.shape[-3] > 1 else 1
    if shared > 1 and config.granularity == "per_row" and config.group_a == 1:
        # Heads that share b are rows of one product: the same bits, b quantized once.
        a = a.unflatten(-3, (-1, shared)).flatten(-3, -2)
    elif shared > 1:
        b = b.repeat_interleave(shared, -3)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (
        x.expand(*batch, *x.shape[-2:]).reshape(math.prod(batch), *x.shape[-2:]) for x in (a, b)
    )
    y = _batched(a, b, config, name).view(*batch, a.shape[-2], b.shape[-2])
    if a.shape[-2] != rows:
        y = y.unflatten(-2, (shared, rows)).flatten(-4, -3)
    return y


def _batched(a: torch.Tensor, b: torch.Tensor, config: SCConfig, name: str) -> torch.Tensor:
    """(B, N, M) float32 of (B, N, D) and (B, M, D); in their dtype where the config is off."""
    if not config.enabled:
        return a @ b.mT
    record = getattr(config, "record", None)  # `record_products` is at work
    if record is not None:
        return record(a, b, name)
    knobs = {**config.prepared_knobs(), "group_a": config.group_a}
    lengths = config.lengths(a, f"{name}_metric", name)
    if config.chunk_d == 0:
        return sc_matmul(a, b, stoc_len=lengths, **knobs)
    heads = [
        sc_matmul(a[i], b[i], stoc_len=lengths[i] if torch.is_tensor(lengths) else lengths, **knobs)
        for i in range(a.shape[0])
    ]
    return torch.stack(heads) if heads else a.new_zeros(0, a.shape[1], b.shape[1]).float()
