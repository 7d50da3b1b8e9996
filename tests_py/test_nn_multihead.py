"""SCMultiheadAttention: torch's semantics, products by hand, and whole encoders of torch."""

import copy
import pickle

import pytest
import torch
from nn_cases import SHORT, nothing_left  # noqa: F401  (a fixture)
from support import DTYPES, assert_same_bits, assert_value_error, every_device, forced, randn
from torch import nn

from scmp_kernels import SCConfig, calibrate_smoothquant, convert, mp, revert, sc_matmul, summary
from scmp_kernels.nn import (
    SCConv2d,
    SCLinear,
    SCMultiheadAttention,
    record_products,
    sc_scaled_dot_product_attention,
)

pytestmark = pytest.mark.usefixtures("nothing_left")
OFF = SCConfig(enabled=False)
OPTIONS = {
    "default": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "sizes": {"kdim": 6, "vdim": 10, "batch_first": True},
    "one size": {"vdim": 10},
    "more keys": {"add_bias_kv": True, "add_zero_attn": True},
}
PARTS = ("q_proj", "k_proj", "v_proj", "qk", "av", "out_proj")


def attention(**options):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, **options).eval().requires_grad_(False)
    for name, parameter in module.named_parameters():
        if "bias" in name:  # zeros else
            parameter.copy_(randn(*parameter.shape))
    return module


def inputs(module, batched=True):
    """Of two entries of 5 queries and 4 keys."""
    sizes = ((5, module.embed_dim), (4, module.kdim), (4, module.vdim))
    return [
        randn(*((2, n) if module.batch_first else (n, 2)) if batched else (n,), columns, seed=i)
        for i, (n, columns) in enumerate(sizes)
    ]


def by_hand(module, query, key, value, layers, attend, mask=None):
    """Batch first, with the lengths of two configs; `mask`: of scaled_dot_product_attention."""

    def linear(x, weight, bias):
        y = sc_matmul(x.flatten(0, -2), weight, stoc_len=layers.stoc_len)
        return (y if bias is None else y + bias).view(*x.shape[:-1], -1)

    if module.in_proj_weight is None:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:
        weights = module.in_proj_weight.chunk(3)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    projected = map(linear, (query, key, value), weights, biases)
    q, k, v = (x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for x in projected)
    y = sc_scaled_dot_product_attention(q, k, v, mask, config=attend)
    return linear(y.transpose(1, 2).flatten(2), module.out_proj.weight, module.out_proj.bias)


@pytest.mark.parametrize("name", ["batch first", "sizes"])
@every_device
def test_by_hand(device, name):
    module = attention(**OPTIONS[name]).to(device)
    x = [each.to(device) for each in inputs(module)]
    padding = torch.tensor([[False] * 4, [False] * 2 + [True] * 2], device=device)
    twin = SCMultiheadAttention.from_float(module, SHORT, SCConfig(granularity="per_head"))
    mask = ~padding.view(2, 1, 1, 4)
    expected = by_hand(module, *x, SHORT, SCConfig(granularity="per_head"), mask)
    for weights in (True, False):
        out = twin(*x, key_padding_mask=padding, need_weights=weights)
        assert_same_bits(out[0], expected)
    with forced("reference"):
        assert_same_bits(twin(*x, key_padding_mask=padding)[0], expected)


def test_self_attention_in_every_layout():
    module = attention()
    x = randn(3, 5, 8)
    expected = by_hand(module, x, x, x, SHORT, SHORT)
    twin = SCMultiheadAttention.from_float(module, SHORT)
    assert_same_bits(twin(*[x.transpose(0, 1)] * 3)[0], expected.transpose(0, 1))
    assert_same_bits(twin(x[0], x[0], x[0])[0], by_hand(module, *[x[:1]] * 3, SHORT, SHORT)[0])


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("average", [True, False, None])
def test_off_it_is_torchs(name, batched, average):
    """Every option and mask means what it means to torch; None: without weights."""
    module = attention(**OPTIONS[name])
    twin = SCMultiheadAttention.from_float(module, OFF)
    batch = 2 if batched else 1
    causal = torch.ones(5, 4, dtype=torch.bool).triu(1)
    masks = [None, causal, randn(5, 4), causal.expand(batch * 2, 5, 4)]
    paddings = [None, torch.tensor([[False] * 4, [False] * 3 + [True]])]
    for mask in masks:
        for padding in paddings:
            options = {"attn_mask": mask, "need_weights": average is not None}
            options["average_attn_weights"] = bool(average)
            if padding is not None:
                padding = padding if batched else padding[1]
                floats = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
                same = mask is None or mask.dtype == torch.bool
                options["key_padding_mask"] = padding if same else floats
            expected = module(*inputs(module, batched), **options)
            torch.testing.assert_close(twin(*inputs(module, batched), **options), expected)


def test_the_attention_that_is_returned_is_the_one_used():
    module = attention(batch_first=True)
    twin = SCMultiheadAttention.from_float(module, SHORT)
    out, weights = twin(*inputs(module), average_attn_weights=False)
    v = twin.v_proj(inputs(module)[2]).unflatten(-1, (2, 4)).transpose(1, 2)
    y = sc_matmul(weights.flatten(0, 1), v.flatten(0, 1).mT, stoc_len=64).view(2, 2, 5, 4)
    assert_same_bits(twin.out_proj(y.transpose(1, 2).flatten(2)), out)
    assert_same_bits(twin(*inputs(module))[1], weights.mean(1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype):
    module = attention().to(dtype)
    out, weights = SCMultiheadAttention.from_float(module)(*(x.to(dtype) for x in inputs(module)))
    assert out.dtype == weights.dtype == dtype


def test_a_new_module_is_the_twin_of_a_new_module():
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, add_bias_kv=True, kdim=6)
    torch.manual_seed(0)
    twin = SCMultiheadAttention(8, 2, add_bias_kv=True, kdim=6, config=SHORT)
    assert list(twin.state_dict()) == list(module.state_dict())
    names, expected = (list(dict(m.named_parameters())) for m in (twin, module))
    assert names == expected
    for name, parameter in module.state_dict().items():
        assert_same_bits(twin.state_dict()[name], parameter)
    assert twin.attention_config == twin.q_proj.config == SHORT
    assert "attention=SCConfig(stoc_len=64)" in repr(twin)


def test_parameters_are_shared_and_prepared_once():
    module = attention(batch_first=True)
    twin = SCMultiheadAttention.from_float(module, SHORT)
    assert all(a is b for a, b in zip(twin.parameters(), module.parameters(), strict=True))
    held = [getattr(twin, name)._held for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
    assert all(held)
    x = inputs(module)
    for _ in range(2):
        twin(*x)
        assert [p._held for p in (twin.q_proj, twin.k_proj, twin.v_proj, twin.out_proj)] == held
    module.in_proj_weight[16:] *= 2  # v's
    assert_same_bits(twin(*x)[0], by_hand(module, *x, SHORT, SHORT))


@pytest.mark.parametrize("name", ["batch first", "sizes"])
def test_states_moves_and_copies(name):
    module = attention(**OPTIONS[name])
    twin, x = SCMultiheadAttention.from_float(module, SHORT), inputs(module)
    scales = randn(twin.vdim).exp()
    twin.v_proj.set_smooth_scales(scales)
    expected = twin(*x)[0]
    assert set(twin.state_dict()) - set(module.state_dict()) == {"v_proj.smooth_scales"}
    for other in (copy.deepcopy(twin), pickle.loads(pickle.dumps(twin))):
        other.in_proj_bias.zero_()  # nobody else's
        assert_same_bits(twin(*x)[0], expected)
        other.load_state_dict(twin.state_dict(), assign=True)
        assert_same_bits(other(*x)[0], expected)
    new = SCMultiheadAttention(8, 2, **OPTIONS[name], config=SHORT).eval()
    new.load_state_dict(twin.state_dict())
    with torch.no_grad():
        assert_same_bits(new(*x)[0], expected)
    held = twin.double().float().v_proj._held
    assert_same_bits(twin(*x)[0], expected)
    assert twin.v_proj._held is held  # of the weight after the move
    assert twin.bfloat16().v_proj.smooth_scales.dtype == torch.float32
    meta = copy.deepcopy(twin).to("meta")
    assert meta.v_proj.weight.is_meta and meta.v_proj.smooth_scales.is_meta


def test_gradients():
    module = attention(batch_first=True).requires_grad_(True)
    x = inputs(module)
    module(*x)[0].square().sum().backward()
    expected = {name: p.grad for name, p in module.named_parameters()}
    module.zero_grad()
    twin = SCMultiheadAttention.from_float(module.train(), SCConfig(sc_prec=12))
    with torch.no_grad():
        frozen = twin(*x)[0]
    out = twin(*x)[0]
    assert_same_bits(out.detach(), frozen)
    out.square().sum().backward()
    for name, p in twin.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=0.1, atol=0.05)


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, **{"batch_first": True, **options})
    return nn.TransformerEncoder(layer, 2).eval().requires_grad_(False)


def layer_by_hand(layer, x, config):
    y = layer.norm1(x + by_hand(layer.self_attn, x, x, x, config, config))
    return layer.norm2(y + layer.linear2(layer.linear1(y).relu()))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_an_encoder_does_not_go_around_it(mode):
    m, x = encoder(), randn(2, 5, 8)
    before, state, modules = m(x), list(m.state_dict()), dict(m.named_modules())
    convert(m, SHORT)
    assert list(m.state_dict()) == state
    with mode():
        out = m(x)
    assert_same_bits(out, layer_by_hand(m.layers[1], layer_by_hand(m.layers[0], x, SHORT), SHORT))
    revert(m)
    assert all(module is modules[name] for name, module in m.named_modules())
    assert_same_bits(m(x), before)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_encoder_layer_does_not_go_around_one_put_there_by_hand(mode):
    layer, x = encoder().layers[0], randn(2, 5, 8)
    layer.self_attn = SCMultiheadAttention.from_float(layer.self_attn, SHORT)
    with mode():
        assert_same_bits(layer(x), layer_by_hand(layer, x, SHORT))


def test_padding_in_an_encoder():
    """It would make nested tensors of them."""
    m, x = encoder(), randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    before = m(x, src_key_padding_mask=padding)
    convert(m, SHORT)
    out = m(x, src_key_padding_mask=padding)
    other = m(x.masked_fill(padding.unsqueeze(-1), 0.5), src_key_padding_mask=padding)
    assert_same_bits(out[0], other[0])
    assert_same_bits(revert(m)(x, src_key_padding_mask=padding), before)


def test_a_decoder():
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)
    m = nn.TransformerDecoder(layer, 1).eval().requires_grad_(False)
    x, memory = randn(2, 5, 8), randn(2, 4, 8, seed=1)
    causal = nn.Transformer.generate_square_subsequent_mask(5)
    hand = convert(m, SHORT).layers[0]
    y = by_hand(hand.self_attn, x, x, x, SHORT, SHORT, causal)
    x1 = hand.norm1(x + y)
    x2 = hand.norm2(x1 + by_hand(hand.multihead_attn, x1, memory, memory, SHORT, SHORT))
    expected = hand.norm3(x2 + hand.linear2(hand.linear1(x2).relu()))
    assert_same_bits(m(x, memory, tgt_mask=causal), expected)


def test_a_filter_and_attention_choose():
    chosen = {"layers.0.self_attn": False, "layers.1.self_attn": SCConfig(stoc_len=8)}
    m = convert(encoder(), SHORT, lambda name, _: chosen.get(name, True))
    assert type(m.layers[0].self_attn) is nn.MultiheadAttention
    second = m.layers[1].self_attn
    assert second.q_proj.config == second.attention_config == SCConfig(stoc_len=8)
    revert(m)
    second = convert(m, SHORT, attention=False).layers[1].self_attn
    assert second.k_proj.config == SHORT and not second.attention_config.enabled
    x = randn(2, 5, 8)
    expected = by_hand(second, x, x, x, SHORT, OFF)
    assert_same_bits(second(x, x, x, need_weights=False)[0], expected)
    revert(m)
    per_head = SCConfig(granularity="per_head")
    assert convert(m, SHORT, attention=per_head).layers[0].self_attn.attention_config == per_head


def test_a_module_with_hooks_stays_float_inside_a_model_that_attends():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.out = attention(batch_first=True), nn.Linear(8, 8)

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0]

    m, x = Model(), randn(2, 5, 8)
    m.attention.out_proj.register_forward_hook(lambda *_: None)
    before = m(x)
    assert_same_bits(convert(m, SHORT)(x), before)
    result = summary(m, x, verbose=False)
    assert [(row.name, row.kind, row.lengths, row.macs) for row in result.rows] == [
        ("attention", "MultiheadAttention", [], 10 * 8 * 8 * 4),
        ("out", "SCLinear", [64], 0),
        ("attention", "qk", [], 2 * 5 * 5 * 8),
        ("attention", "av", [], 2 * 5 * 5 * 8),
    ]
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_module_is_a_model():
    module = attention()
    twin = convert(module, SHORT)
    assert type(twin) is SCMultiheadAttention
    twin.load_state_dict(attention(add_bias_kv=False).state_dict(), assign=True)
    assert revert(twin) is module and module.in_proj_weight is twin.in_proj_weight
    assert module.out_proj.weight is twin.out_proj.weight


def test_summary_scales_and_records():
    m, x = encoder(), randn(2, 5, 8)
    exact = summary(m, x, verbose=False)
    before = m(x)
    convert(m, SHORT)
    result = summary(m, x, verbose=False)
    assert result.share == 1 and result.macs == exact.macs
    names = {f"layers.0.self_attn.{part}" for part in PARTS}
    kinds = ("qk", "av")
    found = {f"{r.name}.{r.kind}" if r.kind in kinds else r.name for r in result.rows}
    assert names < found
    recorder = mp.CalibrationRecorder([256, 32], progress=False)
    with record_products(m, recorder):
        torch.testing.assert_close(m(x), before)
    assert {call.operator for call in recorder.calls} == found
    scales = calibrate_smoothquant(m, [x], progress=False)
    assert names - {f"layers.0.self_attn.{kind}" for kind in kinds} < set(scales)
    first = m.layers[0].self_attn
    assert_same_bits(first.q_proj.smooth_scales, scales["layers.0.self_attn.q_proj"])
    assert_same_bits(
        first.q_proj(x).view(10, 8),
        sc_matmul(
            x.view(10, 8),
            first.in_proj_weight[:8],
            stoc_len=64,
            smooth_scales=scales["layers.0.self_attn.q_proj"],
        )
        + first.in_proj_bias[:8],
    )


@pytest.mark.parametrize("whole", [True, False])
def test_thresholds_go_by_the_names_of_parts(whole):
    """Of an encoder, or of a module that is the model."""
    m, x = (encoder(), (randn(2, 5, 8),)) if whole else (attention(), [randn(5, 2, 8)] * 3)
    m = convert(m, SCConfig())
    recorder = mp.CalibrationRecorder([256, 32], progress=False)
    with record_products(m, recorder):
        m(*x)
    names = {call.operator for call in recorder.calls}
    assert whole or names == set(PARTS)
    config = mp.calibrate_thresholds(recorder, mean_length=128, progress=False).config()
    m = convert(revert(m), SCConfig(mp=config))
    m(*x)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_one_graph_that_is_never_stale(backend):
    torch._dynamo.reset()
    m, x = convert(encoder(), SHORT), randn(2, 5, 8)
    call = torch.compile(m, fullgraph=True, backend=backend)
    torch.testing.assert_close(call(x), m(x), rtol=1e-4, atol=1e-4)
    m.layers[0].self_attn.in_proj_weight[8:16] *= 2
    with pytest.raises(ValueError, match="must be as they were prepared where a compiled"):
        call(x)
    m.eval()
    torch.testing.assert_close(call(x), m(x), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


def test_export():
    m, x = convert(attention(), SHORT), randn(5, 2, 8)
    exported = torch.export.export(m, (x, x, x))
    assert_same_bits(exported.module()(x, x, x)[0], m(x, x, x)[0])
    assert set(exported.state_dict) == set(attention().state_dict())


def test_errors():
    twin = SCMultiheadAttention(8, 2, batch_first=True).eval()
    x = randn(2, 5, 8)

    def call(message, *inputs, **options):
        assert_value_error(lambda: twin(*inputs, **options), f"SCMultiheadAttention: {message}")

    call("key must have 2 or 3 dimensions, as query, the last of 8, got (5, 8)", x, x[0], x)
    call("key must have a batch of 2 as query, got (1, 5, 8)", x, x[:1], x[:1])
    call(
        "value must have as many entries and positions as key, (2, 5), got (2, 4, 8)",
        *(x, x, x[:, :4]),
    )
    call(
        "attn_mask must have shape (5, 5) or (4, 5, 5), got (2, 5, 5)",
        *(x, x, x),
        attn_mask=torch.zeros(2, 5, 5),
    )
    call(
        "key_padding_mask must be bool or float, got torch.int64",
        *(x, x, x),
        key_padding_mask=torch.zeros(2, 5, dtype=torch.int64),
    )
    call("attn_mask must be given with is_causal=True, got None", x, x, x, is_causal=True)
    nested = torch.nested.nested_tensor([x[0], x[1]])
    call("query must not be nested, got a nested tensor", nested, nested, nested)
    assert_value_error(
        lambda: SCMultiheadAttention(8, 2, config={}),
        "SCMultiheadAttention: config must be an SCConfig, got {}",
    )
    assert_value_error(
        lambda: convert(encoder(), SCConfig(granularity="per_head"), lambda n, _: "self" in n),
        "convert: layers.0.self_attn: SCLinear: granularity must be 'per_row' or 'per_tensor', "
        "got 'per_head'",
    )


def test_other_layers_are_none_of_its_business():
    m = nn.Sequential(nn.Conv2d(1, 1, 1), attention())
    convert(m, SHORT, lambda name, module: not isinstance(module, nn.MultiheadAttention))
    assert type(m[0]) is SCConv2d and type(m[1]) is nn.MultiheadAttention
    assert not isinstance(m[1].out_proj, SCLinear)
