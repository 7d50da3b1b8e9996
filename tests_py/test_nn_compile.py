"""Layers in torch.compile, torch.export and torch.jit.trace."""

import pytest
import torch
from support import assert_same_bits, randn
from torch import nn

from scmp_kernels import SCConfig, mp
from scmp_kernels.nn import SCConv2d, SCLinear
from scmp_kernels.sc.config_helpers import make_sobol_custom_seed_config

X = randn(3, 5, 8)
CONFIGS = {
    "default": SCConfig(),
    "chunks": SCConfig(
        chunk_d=4, config=make_sobol_custom_seed_config(4, 4, 8, use_scrambling=True)
    ),
    "mp": SCConfig(mp=mp.MPConfig([256, 32])),
    "thresholds": SCConfig(
        mp=mp.AdaptiveMPConfig([256, 32], operator_default_thresholds={"up": [0.5]}),
        operator="up",
    ),
    "off": SCConfig(enabled=False),
}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def layer(config=CONFIGS["default"], **options):
    return SCLinear(8, 6, config=config, **options).eval().requires_grad_(False)


def compiled(module, **options):
    return torch.compile(module, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.parametrize("name", CONFIGS)
def test_one_graph(name):
    module = layer(CONFIGS[name], smooth_scales=randn(8).exp())
    assert_same_bits(compiled(module)(X), module(X))


def test_any_number_of_rows():
    module = layer()
    call = compiled(module, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (5, 7, 30):
            x = randn(3, rows, 8)
            assert_same_bits(call(x), module(x))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_convolution(groups):
    conv = SCConv2d(4, 4, 3, padding="same", groups=groups).eval().requires_grad_(False)
    x = randn(2, 4, 6, 6)
    assert_same_bits(compiled(conv)(x), conv(x))


def test_the_prepared_weight_is_in_the_graph():
    graphs = []

    def backend(graph, _):
        graphs.append(graph.code)
        return graph

    torch.compile(layer(), fullgraph=True, backend=backend)(X)
    assert "sc_matmul_prepared" in graphs[0] or "sc_matmul.prepared" in graphs[0]


def test_the_check_stays_outside_of_cuda_graphs():
    """Where it would run once; and one that writes its inputs makes torch give up on the graph."""
    layer()  # registers it
    assert torch.Tag.cudagraph_unsafe in torch.ops.scmp_nn.check_prepared.default.tags


CHANGES = {
    "in place": lambda m: m.weight.mul_(2),
    "data": lambda m: setattr(m.weight, "data", randn(6, 8)),
    "parameter": lambda m: setattr(m, "weight", nn.Parameter(randn(6, 8), requires_grad=False)),
    "scales": lambda m: m.smooth_scales.copy_(randn(8).exp()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_graph_is_never_stale(name):
    module = layer(smooth_scales=torch.ones(8))
    call = compiled(module)
    call(X)
    CHANGES[name](module)
    with pytest.raises(ValueError, match="must be as they were prepared where a compiled"):
        call(X)
    module.eval()
    assert_same_bits(call(X), module(X))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.load_state_dict(SCLinear(8, 6).state_dict()),
        lambda m: m.load_state_dict(SCLinear(8, 6).state_dict(), assign=True),
        lambda m: m.double().float(),
        lambda m: m.set_smooth_scales(randn(8).exp()),
        lambda m: setattr(m, "config", SCConfig(stoc_len=9)),
    ],
)
def test_what_a_graph_follows(change):
    module = layer()
    call = compiled(module)
    call(X)
    change(module)
    assert_same_bits(call(X), module(X))


def test_many_changes_do_not_recompile():
    module = layer()
    call = compiled(module)
    call(X)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(10):
            module.weight.mul_(1.1)
            module.eval()
            assert_same_bits(call(X), module(X))


def test_training():
    module, other = SCLinear(8, 6), SCLinear(8, 6)
    other.load_state_dict(module.state_dict())
    call = compiled(module)
    for _ in range(2):  # a second step sees the first
        for m, run in ((module, call), (other, other)):
            m.zero_grad()
            run(X).square().sum().backward()
            torch.optim.SGD(m.parameters(), 0.01).step()
    assert_same_bits(module.weight.grad, other.weight.grad)
    assert_same_bits(module.weight.detach(), other.weight.detach())


@pytest.mark.parametrize("strict", [False, True])
def test_an_export_holds_the_weight_itself(strict):
    module = layer()
    exported = torch.export.export(module, (X,), strict=strict)
    assert "scmp_nn" not in str(exported.graph)
    assert_same_bits(exported.module()(X), module(X))
    assert set(exported.state_dict) == {"weight", "bias"}


def test_a_trace_holds_the_weight_itself():
    module = layer()
    traced = torch.jit.trace(module, (X,))
    assert "scmp_nn" not in str(traced.graph)
    assert_same_bits(traced(X), module(X))
