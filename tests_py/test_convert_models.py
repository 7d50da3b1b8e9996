"""Models of transformers and timm, of random weights: converted, by hand, compiled, reverted."""

import os
import subprocess
import sys

import pytest
import torch
from support import ROOT, assert_same_bits, assert_value_error, forced
from torch import nn
from torch.nn import functional as F

from scmp_kernels import SCConfig, calibrate_smoothquant, convert, revert, summary
from scmp_kernels.nn import sc_scaled_dot_product_attention
from scmp_kernels.sc import sc_conv2d, sc_matmul

SHORT = SCConfig(stoc_len=64)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
IDS = torch.arange(18).view(2, 9) % 61
PADDED = torch.tensor([[0] * 3 + [1] * 6, [1] * 9])
IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).view(2, 3, 32, 32).sin()


def transformers():
    return pytest.importorskip("transformers", exc_type=ImportError)


def timm():
    return pytest.importorskip("timm", exc_type=ImportError)


def llama(**options):
    t = transformers()
    config = t.LlamaConfig(vocab_size=61, num_key_value_heads=2, **SIZES, **options)
    return t.LlamaForCausalLM(config)


def bert():
    t = transformers()
    return t.BertModel(t.BertConfig(vocab_size=61, **SIZES))


def vit():
    t = transformers()
    return t.ViTModel(t.ViTConfig(image_size=32, patch_size=8, **SIZES))


MODELS = {
    "llama": (llama, {"input_ids": IDS}),
    "llama, padded": (llama, {"input_ids": IDS, "attention_mask": PADDED}),
    "bert": (bert, {"input_ids": IDS, "attention_mask": PADDED.flip(1)}),
    "vit": (vit, {"pixel_values": IMAGES}),
    "timm vit": (
        lambda: timm().models.VisionTransformer(
            32, 8, embed_dim=32, depth=2, num_heads=4, num_classes=5
        ),
        {"x": IMAGES},
    ),
    "timm cnn": (lambda: timm().create_model("test_efficientnet", num_classes=5), {"x": IMAGES}),
}
models = pytest.mark.parametrize("name", MODELS)


def built(name):
    """A model in eval mode, and a function from it to one output tensor."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model = make().eval().requires_grad_(False)

    def run(model):
        out = model(**inputs)
        return out if isinstance(out, torch.Tensor) else out[0]

    return model, run


def products_by_hand(monkeypatch):
    """torch's own layers and attention compute with sc_matmul from here on."""

    def linear(self, x):
        y = sc_matmul(x.reshape(-1, x.shape[-1]), self.weight, stoc_len=64)
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], -1)

    def conv(self, x):
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        names = ("stride", "padding", "dilation", "groups")
        knobs = dict(zip(names, geometry, strict=True))
        return sc_conv2d(x, self.weight, self.bias, **knobs, stoc_len=64)

    def attention(*args, **kwargs):
        return sc_scaled_dot_product_attention(*args, **kwargs, config=SHORT)

    monkeypatch.setattr(nn.Linear, "forward", linear)
    monkeypatch.setattr(nn.Conv2d, "forward", conv)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attention)


@models
def test_bits(name, monkeypatch):
    model, run = built(name)
    before = run(model)
    convert(model, SHORT)
    out = run(model)
    assert not torch.equal(out, before)
    with forced("reference"):
        assert_same_bits(run(model), out)
    revert(model)
    assert_same_bits(run(model), before)
    products_by_hand(monkeypatch)
    assert_same_bits(run(model), out)


@models
def test_revert_and_state(name):
    model, run = built(name)
    before, modules, state = run(model), list(model.modules()), list(model.state_dict())
    attend = F.scaled_dot_product_attention
    convert(model, SHORT)
    assert list(model.state_dict()) == state
    revert(model)
    assert [a is b for a, b in zip(modules, model.modules(), strict=True)].count(False) == 0
    assert F.scaled_dot_product_attention is attend
    assert_same_bits(run(model), before)


@models
def test_everything_is_on_bit_streams(name):
    model, _ = built(name)
    result = summary(convert(model, SHORT), MODELS[name][1], verbose=False)
    assert all(row.lengths == [64] for row in result.rows if row.kind != "other")
    assert result.share > 0.98  # the rest: rotary angles
    kinds = {row.kind for row in result.rows}
    assert ("qk" in kinds and "av" in kinds) != (name == "timm cnn")


@pytest.mark.parametrize("name", ["llama, padded", "timm vit"])
def test_fullgraph(name):
    torch._dynamo.reset()
    model, run = built(name)
    convert(model, SHORT)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_same_bits(run(compiled), run(model))
    torch._dynamo.reset()


def test_a_head_left_out_and_scales():
    model, run = built("llama")
    inputs = MODELS["llama"][1]
    convert(model, SHORT, filter=lambda name, _: name != "lm_head")
    assert type(model.lm_head) is nn.Linear
    scales = calibrate_smoothquant(model, [inputs], progress=False)
    assert len(scales) == 14 and "lm_head" not in scales
    assert run(model).isfinite().all()


def test_generate_with_a_cache():
    model, _ = built("llama")
    convert(model, SHORT)
    tokens = model.generate(
        IDS,
        attention_mask=PADDED,
        max_new_tokens=3,
        min_new_tokens=3,
        do_sample=False,
        pad_token_id=0,
    )
    assert tokens.shape == (2, 12)


def test_training_with_checkpoints():
    grads = []
    for recompute in (False, True):
        model, run = built("llama")
        # Checkpointing turns the cache off, which lays keys out otherwise for torch's own products.
        model.config.use_cache = False
        convert(model.requires_grad_(True).train(), SHORT)
        if recompute:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        run(model).square().mean().backward()
        grads.append([p.grad for p in model.parameters()])
    for one, other in zip(*grads, strict=True):
        assert_same_bits(one, other)


def test_eager_attention_is_refused():
    model = llama(attn_implementation="eager")
    assert_value_error(
        lambda: convert(model),
        "convert: model must have been made with attn_implementation='sdpa' where attention is "
        "converted (attention=False leaves it float), got 'eager' in model",
    )
    convert(model, attention=False)


def test_importing_imports_none_of_them():
    code = (
        "import sys, scmp_kernels.nn; "
        "assert not {'transformers', 'timm', 'triton', 'matplotlib'} & set(sys.modules)"
    )
    environment = {**os.environ, "SC_OWEN_MODE": "nonsense"}  # which calls refuse, not imports
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=environment)


def test_the_example_of_the_docs():
    transformers()
    text = (ROOT / "docs" / "conversion.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert len(blocks[0].strip().splitlines()) <= 15
    names = {}
    for block in blocks:
        exec(block, names)
