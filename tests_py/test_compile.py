"""torch.compile and torch.export: one graph, any size, no recompilation, no digest baked in."""

import io
import os
import shutil

import pytest
import torch
import torch._inductor.config
from strategies import make_config
from support import randn
from torch.export import Dim

from scmp_kernels import mp, quant, sc_matmul
from scmp_kernels.sc import config_helpers
from scmp_kernels.sc.config import StreamConfig

CONFIG = StreamConfig(make_config(1, positions=16, prec=8))


def by_metric(a, b, **knobs):
    """Longer streams for rows of larger values."""
    rows = mp.classify_rows_by_metric(mp.compute_row_metric(a), [256, 64, 0], [0.25, 0.5, 0.25])
    return sc_matmul(a, b, stoc_len=rows.row_stoc_len, **knobs)


def by_rungs(a, b):
    chunks = (a.shape[1] + 7) // 8
    rungs = torch.arange(a.shape[0] * chunks).view(a.shape[0], chunks) % 2
    return sc_matmul(a, b, chunk_d=8, rung_table=rungs, level_lens=[64, 256])


CHUNK_CONFIG = config_helpers.make_sobol_custom_seed_config(8, 8, 8, use_scrambling=True)

MATMULS = {
    "plain": lambda a, b: sc_matmul(a * 2, b) + 1,
    "unipolar-tensor": lambda a, b: sc_matmul(a, b, "per_tensor", mode="unipolar"),
    "chunks": lambda a, b: sc_matmul(a, b, chunk_d=8, group_a=3, halve_bipolar_stoc_len=True),
    "chunk-config": lambda a, b: sc_matmul(a, b, chunk_d=8, config=CHUNK_CONFIG),
    "scales": lambda a, b: sc_matmul(a, b, smooth_scales=b.abs().amax(0) + 1),
    "per_head": lambda a, b: sc_matmul(a[None], b[None], "per_head"),
    "rows": by_metric,
    "rows-of-chunks": lambda a, b: by_metric(a, b, chunk_d=8, halve_bipolar_stoc_len=False),
    "rungs": by_rungs,
}
QUANTIZERS = {
    "bipolar": lambda x: quant.fused_quantize_bipolar(x, 2.0, 8),
    "perrow": lambda x: quant.fused_quantize_bipolar_perrow(x, 8, 100),
    "unipolar": lambda x: quant.fused_quantize_unipolar(x, 2.0, -1.5, 8, True),
    "symmetric": lambda x: quant._grouped_symmetric_quant(x, 3, 127),
    "batched": lambda x: quant._grouped_symmetric_quant_batched(x[None], 3, 127),
    "asymmetric": lambda x: quant._grouped_asymmetric_quant(x, 3, 255),
}
SIZES = ((5, 6, 16), (7, 9, 24), (33, 2, 17), (64, 65, 64))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pair(n, m, depth, grad=False):
    return randn(n, depth).requires_grad_(grad), randn(m, depth, seed=1).requires_grad_(grad)


def assert_same(actual, expected):
    actual, expected = ((x if isinstance(x, tuple) else (x,)) for x in (actual, expected))
    for x, y in zip(actual, expected, strict=True):
        assert torch.equal(x, y) if isinstance(y, torch.Tensor) else x == y


def check(function, inputs, backend="aot_eager"):
    """One graph serves all inputs."""
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for args in inputs:
            assert_same(compiled(*args), function(*args))


@pytest.mark.parametrize("name", MATMULS)
def test_sc_matmul_in_one_dynamic_graph(name):
    check(MATMULS[name], [pair(*size) for size in SIZES])


@pytest.mark.parametrize("name", QUANTIZERS)
def test_quantizers_in_one_dynamic_graph(name):
    check(QUANTIZERS[name], [pair(*size)[:1] for size in SIZES])


def test_a_config_in_one_dynamic_graph():
    def function(a, b):
        return sc_matmul(a, b, config=CONFIG, stoc_len=100)

    check(function, [pair(n, m, 16) for n, m, _ in SIZES])


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_plain_dict_outside_fullgraph_is_never_stale():
    config = make_config(1, positions=16, prec=8)

    def function(a, b):
        return sc_matmul(a * 2, b, config=config) + 1

    compiled = torch.compile(function, backend="aot_eager")
    for seed in range(3):
        config["rng_pool"][0] = {"type": "true_random", "seed": seed}
        assert_same(compiled(*pair(5, 6, 16)), function(*pair(5, 6, 16)))


def test_a_digest_is_not_baked_into_a_graph():
    """Given as a str, too: the text goes in, or the call is refused."""

    def function(a, b):
        return sc_matmul(a, b, config=CONFIG.digest)

    try:
        traced = torch.jit.trace(function, pair(5, 6, 16))
        exported = torch.export.export(Module(function), pair(5, 6, 16), strict=False)
    except ValueError as error:
        assert "digest" in str(error)
    else:
        assert "sha256:" not in f"{traced.graph} {exported.graph}"


def test_gradients_in_one_dynamic_graph():
    def function(a, b):
        return sc_matmul(a * 2, b, smooth_scales=b.detach().abs().amax(0) + 1).square()

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in SIZES:
            a, b = pair(*size, grad=True)
            expected = torch.autograd.grad(function(a, b).sum(), (a, b))
            assert_same(torch.autograd.grad(compiled(a, b).sum(), (a, b)), expected)


def test_numbers_may_change_between_calls():
    """They may recompile; they must not be frozen."""
    x = randn(5, 16)
    a, b = pair(5, 6, 16)
    by_length = torch.compile(lambda n: sc_matmul(a, b, stoc_len=n), backend="aot_eager")
    for length in (100, 200, 7):
        assert_same(by_length(length), sc_matmul(a, b, stoc_len=length))
    by_range = torch.compile(
        lambda x, r: quant.fused_quantize_unipolar(x, r, -r, 8, True),
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for limit in (1.0, 2.5, 0.3):
        assert_same(by_range(x, limit), quant.fused_quantize_unipolar(x, limit, -limit, 8, True))


def test_the_environment_is_not_frozen(monkeypatch):
    a, b = pair(5, 6, 16)

    def function(a, b):
        return sc_matmul(a, b, stoc_len=100)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    default = compiled(a, b)
    monkeypatch.setenv("SC_OWEN_MODE", "random")
    changed = compiled(a, b)
    assert_same(changed, function(a, b))
    assert not torch.equal(changed, default)
    monkeypatch.setenv("SC_OWEN_MODE", "nonsense")
    with pytest.raises(Exception, match="SC_OWEN_MODE must be bitrev, counter, random or off"):
        compiled(a, b)
    del os.environ["SC_OWEN_MODE"]
    assert_same(compiled(a, b), default)


def test_an_error_keeps_its_text():
    compiled = torch.compile(lambda a, b: sc_matmul(a, b, stoc_len=999), backend="eager")
    with pytest.raises(
        Exception, match="sc_matmul: stoc_len must be in .1, 256. for sc_prec=8, got"
    ):
        compiled(*pair(5, 6, 16))


@pytest.mark.skipif(not shutil.which("c++"), reason="Inductor needs a C++ compiler")
def test_inductor_runs_every_operator():
    """Float scalars and all. Which vector units a machine has is not for this test to find out."""

    def function(a, b):
        outputs = [sc_matmul(a * 2, b, chunk_d=8, config=CHUNK_CONFIG) + 1]
        for quantizer in QUANTIZERS.values():
            outputs += quantizer(a)
        return tuple(outputs)

    quick = {"cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": True}
    with torch._inductor.config.patch(quick):
        check(function, [pair(*size) for size in SIZES[:2]], backend="inductor")


# --- export --------------------------------------------------------------------------------------


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        outputs = self.function(*args)
        if isinstance(outputs, tuple):  # the scalars beside them are constants
            return tuple(x for x in outputs if isinstance(x, torch.Tensor))
        return outputs


def check_export(function, inputs, dims, strict):
    module = Module(function)
    exported = torch.export.export(module, inputs[0], dynamic_shapes=(dims,), strict=strict)
    assert "sha256:" not in str(exported.graph)
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    buffer.seek(0)
    for program in (exported, torch.export.load(buffer)):
        for args in inputs:
            assert_same(program.module()(*args), module(*args))
    return str(exported.graph)


both = pytest.mark.parametrize("strict", [False, True])
N, M, D, B = Dim("n"), Dim("m"), Dim("d"), Dim("b")
EXPORT_SIZES = (*SIZES, (1, 1, 1), (3, 1, 8))


@pytest.mark.parametrize("name", [name for name in MATMULS if name != "rungs"])
@both
def test_export_with_any_n_m_and_d(name, strict):
    inputs = [pair(*size) for size in EXPORT_SIZES]
    check_export(MATMULS[name], inputs, ({0: N, 1: D}, {0: M, 1: D}), strict)


@both
def test_export_with_rungs(strict):
    """Their table is an input; its second size follows from a fixed D."""

    def function(a, b, rungs):
        return sc_matmul(a, b, chunk_d=8, rung_table=rungs, level_lens=[256, 64, 0])

    inputs = []
    for n, m, _ in EXPORT_SIZES:
        rungs = torch.arange(n * 3).view(n, 3) % 3
        inputs.append((*pair(n, m, 20), rungs))
    check_export(function, inputs, ({0: N}, {0: M}, {0: N}), strict)


@both
def test_export_with_a_config_holds_its_json(strict):
    inputs = [pair(n, m, 16) for n, m, _ in EXPORT_SIZES]
    dims = ({0: N}, {0: M})
    graph = check_export(lambda a, b: sc_matmul(a, b, config=CONFIG), inputs, dims, strict)
    assert "rng_pool" in graph


@both
def test_export_batched(strict):
    inputs = [(randn(b, 4, 16), randn(b, 5, 16, seed=1)) for b in (2, 3, 1)]
    inputs += [(randn(4, 7, 9), randn(4, 2, 9, seed=1))]
    dims = ({0: B, 1: N, 2: D}, {0: B, 1: M, 2: D})
    check_export(lambda a, b: sc_matmul(a, b, "per_head"), inputs, dims, strict)
    check_export(lambda a, b: sc_matmul(a, b, group_a=2, mode="unipolar"), inputs, dims, strict)


@pytest.mark.parametrize("name", QUANTIZERS)
@both
def test_export_quantizers(name, strict):
    inputs = [(randn(n, depth),) for n, _, depth in EXPORT_SIZES]
    check_export(QUANTIZERS[name], inputs, ({0: N, 1: D},), strict)
