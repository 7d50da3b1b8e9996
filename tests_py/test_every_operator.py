"""What every operator must pass: one dynamic graph, torch.export and opcheck."""

import pytest
import torch
from operator_cases import ARGUMENTS, CASES
from support import assert_same_bits, every_device
from torch.export import Dim
from torch.library import opcheck

from scmp_kernels import mp

OPS = torch.ops.scmp
# A graph takes what they return: they stay outside (test_prepared_graphs.py has their error).
OUTSIDE_GRAPHS = {"prepare", "prepare_spec"}
every_case = pytest.mark.parametrize("name", CASES)
with_gradient = [name for name, case in CASES.items() if case.grad]


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def registered():
    """The name of every operator, with its overload."""
    schemas = torch._C._jit_get_all_schemas()
    names = [(s.name, s.overload_name) for s in schemas if s.name.startswith("scmp::")]
    return {".".join(filter(None, name)).removeprefix("scmp::") for name in names}


def overload(name):
    """The operator of such a name: torch.ops.scmp.sc_matmul.default of "sc_matmul"."""
    packet, _, which = name.partition(".")
    return getattr(getattr(OPS, packet), which or "default")


def as_tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def tensors(outputs):
    """What of the outputs is a tensor; the numbers beside them are constants."""
    return tuple(x for x in as_tuple(outputs) if isinstance(x, torch.Tensor))


def assert_same(actual, expected):
    for x, y in zip(as_tuple(actual), as_tuple(expected), strict=True):
        if isinstance(y, torch.Tensor):
            assert_same_bits(x, y)
        else:
            assert x == y


def test_every_operator_is_here():
    """An operator that is registered has a line in both tables."""
    assert {*CASES, *OUTSIDE_GRAPHS} == registered()
    assert set(ARGUMENTS) == registered()


def check_one_graph(name, run, device="cpu"):
    """`run(call, inputs)` has the same bits, compiled once for all sizes."""
    case = CASES[name]
    compiled = torch.compile(case.call, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for index in range(len(case.sizes)):
            inputs = case.inputs(index, grad=run is gradients, device=device)
            for tensor, dims in zip(inputs, case.varying(), strict=True):
                for dim in dims:
                    torch._dynamo.mark_dynamic(tensor, dim)
            assert_same(run(compiled, inputs), run(case.call, inputs))


def gradients(call, inputs):
    total = sum(x.square().sum() for x in tensors(call(*inputs)))
    return torch.autograd.grad(total, inputs)


@pytest.mark.usefixtures("fresh")
@every_case
@every_device
def test_one_dynamic_graph(device, name):
    assert len(CASES[name].sizes) >= 3
    if device != "cpu" and "prepared" in name:
        pytest.skip("the case's operand is on the CPU; test_cuda_prepared.py has graphs of others")
    check_one_graph(name, lambda call, inputs: call(*inputs), device)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", with_gradient)
def test_gradients_in_one_dynamic_graph(name):
    check_one_graph(name, gradients)


class Module(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *inputs):
        return tensors(self.call(*inputs))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("strict", [False, True])
@every_case
def test_export(name, strict):
    case = CASES[name]
    module, dims = Module(case.call), {}
    for letter in case.sizes[0]:
        dims[letter] = case.dims.get(letter) or Dim(letter)
    shapes = tuple({i: dims[s] for i, s in each.items()} for each in case.varying())
    exported = torch.export.export(module, case.inputs(0), dynamic_shapes=(shapes,), strict=strict)
    assert overload(name) in {node.target for node in exported.graph.nodes}
    for index in range(len(case.sizes)):
        inputs = case.inputs(index)
        assert_same(exported.module()(*inputs), module(*inputs))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_opcheck(name):
    args, knobs = ARGUMENTS[name]
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if name != "prepare_spec":  # a str is no output of a graph
        tests.append("test_aot_dispatch_dynamic")
    opcheck(overload(name), args, knobs, test_utils=tests)


@pytest.mark.parametrize("name", with_gradient)
def test_opcheck_with_gradients(name):
    args, knobs = ARGUMENTS[name]
    asked = [
        x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in args
    ]
    opcheck(overload(name), asked, knobs)


@pytest.mark.usefixtures("fresh")
def test_numbers_stay_outside_graphs():
    config = mp.RangeMPConfig([256, 64])

    def lengths(weight):
        return weight.sum() + sum(mp.classify_groups_by_range(weight, 2, config))

    weight = torch.rand(6, 4)
    with pytest.raises(Exception, match="classify_groups_by_range: it returns numbers"):
        torch.compile(lengths, fullgraph=True, backend="eager")(weight)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(lengths, backend="eager")(weight), lengths(weight))
