"""Attention on bit streams: by hand, against torch's semantics, and its errors."""

import math

import pytest
import torch
from support import DTYPES, assert_same_bits, assert_value_error, every_device, forced, randn
from torch.nn import functional as F

from scmp_kernels import SCConfig, mp, sc_matmul
from scmp_kernels.nn import sc_scaled_dot_product_attention as attention
from scmp_kernels.sc.config_helpers import make_sobol_simple_config


def heads(batch=2, queries=4, keys=4, length=5, size=6, width=8, columns=7):
    return (
        randn(batch, queries, length, width),
        randn(batch, keys, size, width, seed=1),
        randn(batch, keys, size, columns, seed=2),
    )


def by_hand(q, k, v, bias=0.0, scale=None, qk=None, av=None, **knobs):
    """Of the same number of heads; `qk` and `av` are the lengths."""
    batch, scale = q.shape[:-2], q.shape[-1] ** -0.5 if scale is None else scale
    q3, k3, v3 = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))
    scores = sc_matmul(q3, k3, stoc_len=qk, **knobs).view(*batch, q.shape[-2], k.shape[-2])
    weights = (scores * scale + bias).softmax(-1)
    y = sc_matmul(weights.flatten(0, -3), v3.mT, stoc_len=av, **knobs)
    return y.view(*batch, q.shape[-2], v.shape[-1]).to(q.dtype)


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"granularity": "per_head"},
        {"granularity": "per_tensor", "mode": "unipolar"},
        {"mode": "unipolar"},
        {"group_a": 2, "group_b": 3, "halve_bipolar_stoc_len": True},
    ],
)
@every_device
def test_by_hand(device, knobs):
    q, k, v = (x.to(device) for x in heads())
    expected = by_hand(q, k, v, **knobs)
    assert_same_bits(attention(q, k, v, config=SCConfig(**knobs)), expected)
    with forced("reference"):
        assert_same_bits(attention(q, k, v, config=SCConfig(**knobs)), expected)


def test_lengths():
    q, k, v = heads()
    config = SCConfig(stoc_len=32)
    assert_same_bits(attention(q, k, v, config=config), by_hand(q, k, v, qk=32, av=32))


@pytest.mark.parametrize(
    "config",
    [
        mp.MPConfig([256, 32, 0], qk_metric="l2", av_metric="crest"),
        mp.AdaptiveMPConfig([256, 32], operator_default_thresholds={"a.qk": [0.5], "a.av": [0.7]}),
    ],
)
def test_lengths_by_row(config):
    q, k, v = heads()
    config = SCConfig(mp=config, operator="a")
    qk = config.lengths(q.flatten(0, 1), "qk_metric", "qk")
    scores = sc_matmul(q.flatten(0, 1), k.flatten(0, 1), stoc_len=qk)
    av = config.lengths((scores * 8**-0.5).softmax(-1), "av_metric", "av")
    assert qk.unique().numel() > 1 and av.unique().numel() > 1
    assert_same_bits(attention(q, k, v, config=config), by_hand(q, k, v, qk=qk, av=av))


@pytest.mark.parametrize("lengths", [{}, {"mp": mp.MPConfig([256, 32])}])
def test_chunks_are_one_call_per_head(lengths):
    q, k, v = heads()
    knobs = {"chunk_d": 4, "config": make_sobol_simple_config(4, 4)}
    config = SCConfig(**knobs, **lengths)
    out = attention(q, k, v, config=config)
    qk = config.lengths(q.flatten(0, 1), "qk_metric")
    pairs = zip(q.flatten(0, 1), k.flatten(0, 1), strict=True)
    by_row = isinstance(qk, torch.Tensor)
    scores = torch.stack(
        [
            sc_matmul(a, b, stoc_len=qk[i] if by_row else qk, **knobs)
            for i, (a, b) in enumerate(pairs)
        ]
    )
    weights = (scores * 8**-0.5).softmax(-1)
    av = config.lengths(weights, "av_metric")
    pairs = zip(weights, v.flatten(0, 1), strict=True)
    expected = torch.stack(
        [
            sc_matmul(a, b.mT, stoc_len=av[i] if by_row else av, **knobs)
            for i, (a, b) in enumerate(pairs)
        ]
    )
    assert_same_bits(out, expected.view(2, 4, 5, 7))


def test_masks():
    q, k, v = heads()
    taken = randn(2, 1, 5, 6) > -0.5
    taken[..., 0] = True
    bias = torch.zeros(2, 1, 5, 6).masked_fill(~taken, -math.inf)
    expected = by_hand(q, k, v, bias)
    assert_same_bits(attention(q, k, v, taken), expected)
    assert_same_bits(attention(q, k, v, bias), expected)
    slope = randn(4, 5, 6)
    assert_same_bits(attention(q, k, v, slope), by_hand(q, k, v, slope))
    causal = torch.ones(5, 6, dtype=torch.bool).tril()
    assert_same_bits(attention(q, k, v, is_causal=True), attention(q, k, v, causal))


def test_a_query_without_keys_is_zero_as_in_torch():
    q, k, v = heads()
    taken = torch.ones(5, 6, dtype=torch.bool)
    taken[2] = False
    out = attention(q, k, v, taken)
    assert not out[:, :, 2].any() and not out.isnan().any()
    assert not F.scaled_dot_product_attention(q, k, v, taken)[:, :, 2].any()


def test_heads_without_columns_average_as_in_torch():
    q, k, v = heads(width=0)
    y = attention(q, k, v, config=SCConfig(sc_prec=12))
    torch.testing.assert_close(y, F.scaled_dot_product_attention(q, k, v), atol=0.01, rtol=0)


def test_nan_is_not_hidden():
    q, k, v = heads()
    q[0, 0, 0, 0] = math.nan
    assert attention(q, k, v, torch.ones(5, 6, dtype=torch.bool))[0, 0, 0].isnan().all()


@pytest.mark.parametrize("scale", [None, 1.0, 0.25])
@pytest.mark.parametrize("granularity", ["per_row", "per_head", "per_tensor"])
def test_gqa_is_repeated_heads(scale, granularity):
    q, k, v = heads(keys=2)
    config = SCConfig(granularity=granularity)
    expected = by_hand(
        q,
        k.repeat_interleave(2, 1),
        v.repeat_interleave(2, 1),
        scale=scale,
        granularity=granularity,
    )
    out = attention(q, k, v, scale=scale, enable_gqa=True, config=config)
    assert_same_bits(out, expected)


def test_gqa_with_groups_of_rows():
    q, k, v = heads(keys=1)
    out = attention(q, k, v, enable_gqa=True, config=SCConfig(group_a=2))
    many = (x.expand(-1, 4, -1, -1) for x in (k, v))
    assert_same_bits(out, by_hand(q, *many, group_a=2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_near_torch(dtype):
    q, k, v = (x.to(dtype) for x in heads())
    taken = randn(5, 6) > -1
    for options in ({}, {"attn_mask": taken}, {"is_causal": True}, {"scale": 0.1}):
        out, exact = (f(q, k, v, **options) for f in (attention, F.scaled_dot_product_attention))
        assert out.dtype == dtype and out.shape == exact.shape
        torch.testing.assert_close(out.float(), exact.float(), rtol=0.1, atol=0.15)


def test_ranks_and_broadcasting():
    q, k, v = heads()
    assert_same_bits(attention(q[0, 0], k[0, 0], v[0, 0]), attention(q, k, v)[0, 0])
    assert_same_bits(attention(q[0], k[0], v[0]), attention(q, k, v)[0])
    many = [x[:1].expand(2, -1, -1, -1) for x in (k, v)]
    assert_same_bits(attention(q, k[:1], v[:1]), attention(q, *many))
    five = [x[None] for x in (q, k, v)]
    assert_same_bits(attention(*five)[0], attention(q, k, v))
    empty = [x[:0] for x in (q, k, v)]
    for config in (SCConfig(), SCConfig(chunk_d=4)):
        assert attention(*empty, config=config).shape == (0, 4, 5, 7)


def test_dropout():
    q, k, v = heads()
    assert not attention(q, k, v, dropout_p=1.0).any()
    torch.manual_seed(0)
    dropped = attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(0)
    assert_same_bits(attention(q, k, v, dropout_p=0.5), dropped)
    assert not torch.equal(dropped, attention(q, k, v))


def test_gradients():
    q, k, v = (x.requires_grad_() for x in heads(keys=2))
    g = randn(2, 4, 5, 7, seed=3)
    found, exact = (
        torch.autograd.grad(f(q, k, v, is_causal=True, enable_gqa=True), (q, k, v), g)
        for f in (attention, F.scaled_dot_product_attention)
    )
    for mine, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.2, atol=0.2)


def test_off_is_torch():
    q, k, v = heads(keys=2)
    options = {"is_causal": True, "enable_gqa": True, "scale": 0.3}
    out = attention(q, k, v, **options, config=SCConfig(enabled=False))
    assert_same_bits(out, F.scaled_dot_product_attention(q, k, v, **options))


def test_one_graph():
    torch._dynamo.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    q, k, v = heads(keys=2)
    out = compiled(q, k, v, is_causal=True, enable_gqa=True)
    assert_same_bits(out, attention(q, k, v, is_causal=True, enable_gqa=True))
    torch._dynamo.reset()


Q, K, V = heads()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"query": Q[0, 0, 0]}, "query must have at least 2 dimensions, got (8,)"),
        (
            {"key": K[..., :5]},
            "key must have shape (..., S, E) with E = 8 as query, got (2, 4, 6, 5)",
        ),
        (
            {"value": V[..., :3, :]},
            "value must have shape (..., S, Ev) with S = 6 as key, got (2, 4, 3, 7)",
        ),
        ({"key": K[:, :2]}, "key must have batch sizes as query, (2, 4), got (2, 2)"),
        (
            {"key": K[:, :3], "enable_gqa": True},
            "key must have a number of heads that divides query's, 4, got 3",
        ),
        (
            {"is_causal": True, "attn_mask": torch.ones(5, 6, dtype=torch.bool)},
            "attn_mask must be None with is_causal=True, got a mask",
        ),
        (
            {"attn_mask": torch.ones(5, 6, dtype=torch.int64)},
            "attn_mask must be bool or float, got torch.int64",
        ),
        (
            {"attn_mask": torch.ones(5, 5, dtype=torch.bool)},
            "attn_mask must have a shape that broadcasts to (..., Hq, L, S) = (2, 4, 5, 6), "
            "got (5, 5)",
        ),
        (
            {"attn_mask": torch.zeros(2, 1, 1, 5, 6)},
            "attn_mask must have a shape that broadcasts to (..., Hq, L, S) = (2, 4, 5, 6), "
            "got (2, 1, 1, 5, 6)",
        ),
        (
            {"attn_mask": torch.zeros(5, 6, device="meta")},
            "attn_mask must be on query's device cpu, got meta",
        ),
        ({"config": None}, "config must be an SCConfig, got None"),
    ],
)
def test_errors(options, text):
    call = {"query": Q, "key": K, "value": V, **options}
    assert_value_error(lambda: attention(**call), f"sc_scaled_dot_product_attention: {text}")
