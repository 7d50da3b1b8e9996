"""A layer's weight is prepared once, and again when it has changed, however it has."""

import copy

import pytest
import torch
from support import assert_same_bits, environment, randn
from torch import nn

import scmp_kernels.nn.weights as weights
from scmp_kernels import SCConfig, sc_matmul
from scmp_kernels.nn import SCConv2d, SCLinear

X = randn(5, 8)


@pytest.fixture
def prepared(monkeypatch):
    """A list that grows by each call of `prepare`."""
    calls = []

    def counted(*args, **kwargs):
        calls.append(args)
        return prepare(*args, **kwargs)

    prepare = weights.prepare
    monkeypatch.setattr(weights, "prepare", counted)
    return calls


def layer(**options):
    return SCLinear(8, 6, **options).eval().requires_grad_(False)


def check(module, x=X):
    """The module has the bits of the plain product with its weight as it is."""
    y = sc_matmul(x, module.weight, smooth_scales=module.smooth_scales) + module.bias.float()
    assert_same_bits(module(x).float(), y.to(x.dtype).float())


def set_data(module):
    module.weight.data = randn(6, 8, seed=7)


def replace(module):
    module.weight = nn.Parameter(randn(6, 8, seed=7), requires_grad=False)


def in_inference_mode(module):
    with torch.inference_mode():
        module.weight.mul_(2)


class WritesData(torch.optim.Optimizer):
    """As some optimizers outside of torch: no trace of the write."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(group["lr"] * p.grad)


def optimizer_step(module, kind=torch.optim.AdamW, **options):
    module.requires_grad_(True)
    optimizer = kind(module.parameters(), lr=0.1, **options)
    module(X).square().mean().backward()
    optimizer.step()
    module.requires_grad_(False)


def load(module, **options):
    module.load_state_dict(SCLinear(8, 6, smooth_scales=torch.ones(8)).state_dict(), **options)


CHANGES = {
    "in place": lambda m: m.weight.mul_(2),
    "a view": lambda m: m.weight[1].fill_(3),
    "detached": lambda m: m.weight.detach().neg_(),
    "data": set_data,
    "parameter": replace,
    "inference mode": in_inference_mode,
    "optimizer": optimizer_step,
    "fused optimizer": lambda m: optimizer_step(m, fused=True),
    "optimizer that writes data": lambda m: optimizer_step(m, WritesData),
    "load": load,
    "assign": lambda m: load(m, assign=True),
    "init": lambda m: nn.init.uniform_(m.weight),
    "scales": lambda m: m.set_smooth_scales(randn(8).exp()),
    "scales in place": lambda m: m.smooth_scales.copy_(randn(8).exp()),
    "double": lambda m: m.double(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name, prepared):
    module = layer(smooth_scales=torch.ones(8))
    check(module)
    check(module)
    assert len(prepared) == 1
    before = module(X)
    CHANGES[name](module)
    check(module)
    check(module)
    assert len(prepared) == 2 and (name == "double" or not torch.equal(module(X), before))


def test_optimizers_of_other_models_are_left_alone():
    module, other = layer(), nn.Linear(8, 6)
    check(module)
    versions = [p._version for p in (*module.parameters(), *other.parameters())]
    optimizer_step(other, fused=True)
    assert [p._version for p in (*module.parameters(), *other.parameters())] == versions


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_optimizer_step(backend):
    module = layer()
    check(module)
    module.requires_grad_(True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, fused=True)
    module(X).square().mean().backward()
    torch._dynamo.reset()
    torch.compile(lambda: optimizer.step(), backend=backend)()
    torch._dynamo.reset()
    check(module.requires_grad_(False))


def test_addresses_are_not_used_again():
    """Weights of one size, one after the other, as an allocator hands them out."""
    module = layer()
    for seed in range(20):
        module.weight.data = randn(6, 8, seed=seed)
        if seed % 3 == 0:
            check(module)
    check(module)


def test_casts_keep_the_scales():
    scales = torch.linspace(0.1, 1, 8)
    for module in (layer(smooth_scales=scales).half(), layer(smooth_scales=scales).bfloat16()):
        assert module.smooth_scales.dtype == torch.float32
        assert torch.equal(module.smooth_scales, scales)
        check(module, X.to(module.weight.dtype))


def test_eval_prepares(prepared):
    module = SCLinear(8, 6)
    module.eval()
    with torch.no_grad():
        check(module)
    assert len(prepared) == 1


def test_the_environment_is_part_of_it():
    module = layer(config=SCConfig(stoc_len=100))
    before = module(X)
    with environment({"SC_OWEN_MODE": "random"}):
        expected = sc_matmul(X, module.weight, stoc_len=100) + module.bias
        assert_same_bits(module(X), expected)
        assert not torch.equal(before, expected)
    assert_same_bits(module(X), before)


def test_training_is_straight_through(prepared):
    module, x = SCLinear(8, 6), X.clone().requires_grad_()
    g = randn(5, 6)
    module(x).backward(g)
    twin = nn.Linear(8, 6)
    twin.load_state_dict(module.state_dict())
    y = X.clone().requires_grad_()
    twin(y).backward(g)
    for mine, theirs in (
        (module.weight.grad, twin.weight.grad),
        (module.bias.grad, twin.bias.grad),
        (x.grad, y.grad),
    ):
        torch.testing.assert_close(mine, theirs)
    assert not prepared


def test_a_frozen_weight_passes_gradients_on(prepared):
    module, x = layer(), X.clone().requires_grad_()
    module(x).sum().backward()
    torch.testing.assert_close(x.grad, module.weight.sum(0).expand(5, 8), rtol=0.02, atol=0.02)
    assert len(prepared) == 1


def test_prepared_in_inference_mode_serves_training():
    module = layer()
    with torch.inference_mode():
        check(module)
    x = X.clone().requires_grad_()
    module(x).sum().backward()
    assert x.grad is not None


def test_weights_of_inference_mode_are_never_stale():
    with torch.inference_mode():
        module = SCLinear(8, 6).eval()
        for _ in range(2):
            check(module)
            module.weight.mul_(2)
        check(module)


def test_state_dicts():
    module, other = layer(smooth_scales=randn(8).exp()), layer()
    other.load_state_dict(module.state_dict())
    assert_same_bits(other(X), module(X))
    with pytest.raises(RuntimeError, match="smooth_scales"):
        module.load_state_dict(nn.Linear(8, 6).state_dict())
    plain = layer()
    plain.load_state_dict(nn.Linear(8, 6).state_dict())
    check(plain)


def test_scales_of_a_state_dict():
    state = {**layer().state_dict(), "smooth_scales": torch.ones(7)}
    with pytest.raises(RuntimeError, match="size mismatch for smooth_scales"):
        layer().load_state_dict(state)
    other = layer()
    other.load_state_dict({**state, "smooth_scales": torch.full((8,), 2.0).half()})
    assert other.smooth_scales.dtype == torch.float32 and other.smooth_scales.tolist() == [2.0] * 8


def test_a_meta_layer_becomes_real():
    module = SCLinear(8, 6, device="meta").eval().requires_grad_(False)
    assert module(X.to("meta")).shape == (5, 6)
    module.to_empty(device="cpu").load_state_dict(SCLinear(8, 6).state_dict())
    check(module)


def test_copies_go_their_own_way():
    module = layer()
    module(X)
    other = copy.deepcopy(module)
    other.weight.mul_(2)
    check(other)
    check(module)


def test_a_convolution_too(prepared):
    conv, x = SCConv2d(2, 3, 3).eval().requires_grad_(False), randn(1, 2, 5, 5)
    before = conv(x)
    conv.weight.mul_(2)
    assert not torch.equal(conv(x), before) and len(prepared) == 2
