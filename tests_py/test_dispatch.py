"""The operators under the rest of PyTorch: opcheck, meta and fake tensors, TorchScript, modes."""

import io
import itertools

import pytest
import torch
from strategies import make_config
from support import DTYPES, every_device, randn
from torch._subclasses import FakeTensorMode
from torch.library import opcheck

from scmp_kernels import sc_matmul
from scmp_kernels.sc.config import StreamConfig

OPS = torch.ops.scmp
CONFIG = StreamConfig(make_config(1, positions=16, prec=8))


def operands(dtype=torch.float32, batch=(), grad=False):
    shapes = ((*batch, 5, 16), (*batch, 6, 16))
    return tuple(randn(*s, seed=i).to(dtype).requires_grad_(grad) for i, s in enumerate(shapes))


MATMUL_CASES = {
    "plain": ((), {}),
    "grad": ((), {"grad": True}),
    "float16-batched": ((), {"dtype": torch.float16, "batch": (2,)}),
    "per_head": (("per_head",), {"batch": (2,), "grad": True}),
    "per_tensor-unipolar": (("per_tensor",), {"mode": "unipolar", "dtype": torch.float64}),
    "chunks": ((), {"chunk_d": 5, "group_a": 2, "group_b": 3, "halve_bipolar_stoc_len": True}),
    "config": ((), {"config": CONFIG.text, "stoc_len": 100}),
    "scales": ((), {"smooth_scales": torch.rand(16) + 0.5, "sc_prec": 5, "rng_levels": 7}),
    "rows": ((), {"row_stoc_len": torch.tensor([0, 256, 64, 1, 7])}),
    "rows-grad": ((), {"row_stoc_len": torch.tensor([0, 256, 64, 1, 7]), "grad": True}),
    "rows-batched": ((), {"batch": (2,), "row_stoc_len": torch.full((2, 5), 9)}),
    "rungs-grad": (
        (),
        {
            "rung_table": torch.arange(20).view(5, 4) % 3,
            "level_lens": [256, 8, 0],
            "chunk_d": 5,
            "grad": True,
        },
    ),
    "scales-grad": ((), {"smooth_scales": torch.ones(16).requires_grad_(), "grad": True}),
}


def matmul_case(name):
    args, knobs = MATMUL_CASES[name]
    how = {key: knobs[key] for key in ("dtype", "batch", "grad") if key in knobs}
    knobs = {key: value for key, value in knobs.items() if key not in how}
    return (*operands(**how), *args), knobs


@pytest.mark.parametrize("name", MATMUL_CASES)
def test_opcheck_sc_matmul(name):
    args, knobs = matmul_case(name)
    opcheck(OPS.sc_matmul.default, args, knobs)


X = randn(5, 16)
QUANT_CASES = [
    (OPS.fused_quantize_bipolar.default, (X, 2.0, 8)),
    (OPS.fused_quantize_bipolar.default, (X.half(), 0.0, 4, 7)),
    (OPS.fused_quantize_bipolar_perrow.default, (X, 8)),
    (OPS.fused_quantize_bipolar_perrow.default, (X.t(), 12, 100)),
    (OPS.fused_quantize_unipolar.default, (X, 2.0, -2.0, 8)),
    (OPS.fused_quantize_unipolar.default, (X.double(), 2.0, -2.0, 8, True, 100)),
    (OPS.grouped_symmetric_quant.default, (X, 2, 127)),
    (OPS.grouped_symmetric_quant.default, (X.expand(3, 5, 16), 2, 7)),
    (OPS.grouped_asymmetric_quant.default, (X, 2, 255)),
    (OPS.grouped_asymmetric_quant.default, (X[:, ::2], 100, 255)),
]


@pytest.mark.parametrize(("operator", "args"), QUANT_CASES)
def test_opcheck_quantizers(operator, args):
    opcheck(operator, args)
    # With a gradient asked for, all but the backward pass, which raises.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    opcheck(operator, (args[0].clone().requires_grad_(), *args[1:]), test_utils=tests)


# --- without values ------------------------------------------------------------------------------


def described(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return [None if x is None else (x.shape, x.dtype, x.stride()) for x in outputs]


def on_meta(args):
    return tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in args)


@pytest.mark.parametrize("name", MATMUL_CASES)
def test_sc_matmul_on_meta_and_fake_tensors(name):
    args, knobs = matmul_case(name)
    expected = described(OPS.sc_matmul(*args, **knobs))
    meta_knobs = dict(zip(knobs, on_meta(knobs.values()), strict=True))
    out = OPS.sc_matmul(*on_meta(args), **meta_knobs)
    assert out.device.type == "meta" and described(out) == expected
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake_args = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in args]
        out = OPS.sc_matmul(*fake_args, **knobs)
    assert out.device.type == "cpu" and described(out) == expected


@pytest.mark.parametrize(("operator", "args"), QUANT_CASES)
def test_quantizers_on_meta_and_fake_tensors(operator, args):
    expected = described(operator(*args))
    assert described(operator(*on_meta(args))) == expected
    with FakeTensorMode() as mode:
        assert described(operator(mode.from_tensor(args[0]), *args[1:])) == expected


def test_the_python_function_takes_meta_and_fake_tensors_and_a_config():
    for a, b in (on_meta(operands()), operands()):
        assert sc_matmul(a, b, config=CONFIG).shape == (5, 6)
    with FakeTensorMode():
        out = sc_matmul(torch.ones(5, 16), torch.ones(6, 16), config=CONFIG, chunk_d=16)
        assert out.shape == (5, 6)


def test_meta_of_empty_sizes():
    for n, m, depth in itertools.product((0, 2), (0, 3), (0, 4)):
        a, b = torch.empty(n, depth, device="meta"), torch.empty(m, depth, device="meta")
        assert sc_matmul(a, b).shape == (n, m)


# --- TorchScript ---------------------------------------------------------------------------------


def scripted_sc_matmul(a: torch.Tensor, b: torch.Tensor, scales: torch.Tensor):
    return torch.ops.scmp.sc_matmul(a, b, "per_row", stoc_len=100, smooth_scales=scales, chunk_d=5)


def scripted_fused(x: torch.Tensor):
    boundary, sign = torch.ops.scmp.fused_quantize_bipolar(x, 2.0, 8)
    row_boundary, row_sign, scale = torch.ops.scmp.fused_quantize_bipolar_perrow(x, 8, 100)
    code, row_sum = torch.ops.scmp.fused_quantize_unipolar(x, 2.0, -1.0, 8, True)
    assert row_sum is not None
    return [boundary, sign, row_boundary, row_sign, scale, code, row_sum]


def scripted_grouped(x: torch.Tensor):
    scale, q, sign = torch.ops.scmp.grouped_symmetric_quant(x, 2, 127)
    row_scale, zero, level = torch.ops.scmp.grouped_asymmetric_quant(x, 2, 255)
    return [scale, q, sign, row_scale, zero, level]


def scripted_rows(a: torch.Tensor, b: torch.Tensor, lengths: torch.Tensor, rungs: torch.Tensor):
    rows = torch.ops.scmp.sc_matmul(a, b, row_stoc_len=lengths)
    return [
        rows,
        torch.ops.scmp.sc_matmul(a, b, rung_table=rungs, level_lens=[256, 8, 0], chunk_d=5),
    ]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (
            scripted_rows,
            (*operands(), torch.tensor([0, 256, 64, 1, 7]), torch.arange(20).view(5, 4) % 3),
        ),
        (scripted_sc_matmul, (*operands(), torch.rand(16) + 0.5)),
        (scripted_fused, (X,)),
        (scripted_grouped, (X,)),
    ],
)
@every_device
def test_torchscript_of_each_operator(function, args, device):
    args = [x.to(device) for x in args]
    scripted = torch.jit.script(function)
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    expected = function(*args)
    for module in (scripted, torch.jit.load(buffer)):
        for x, y in zip(module(*args), expected, strict=True):
            assert torch.equal(x, y)


def test_torchscript_errors_keep_their_text():
    @torch.jit.script
    def call(a: torch.Tensor, b: torch.Tensor):
        return torch.ops.scmp.sc_matmul(a, b, "row")

    with pytest.raises(
        RuntimeError, match="sc_matmul: granularity must be 'per_row', 'per_tensor'"
    ):
        call(*operands())


@every_device
def test_torch_jit_trace_takes_other_sizes_and_no_digest(device):
    def function(a, b):
        return sc_matmul(a, b, config=CONFIG, stoc_len=100) * 2

    traced = torch.jit.trace(function, [x.to(device) for x in operands()])
    assert "sha256:" not in str(traced.graph) and "rng_pool" in str(traced.graph)
    a, b = randn(9, 16, seed=5).to(device), randn(2, 16, seed=6).to(device)
    assert torch.equal(traced(a, b), function(a, b))


# --- modes ---------------------------------------------------------------------------------------


@every_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(dtype, device):
    a, b = (x.to(device) for x in operands())
    with torch.autocast(device, dtype=dtype):
        out = sc_matmul(a, b)
        low = sc_matmul(torch.mm(a, a.t()), torch.mm(b, a.t()))
    assert out.dtype == low.dtype == torch.float32
    assert torch.equal(out, sc_matmul(a, b))


@every_device
def test_inference_mode(device):
    a, b = (x.to(device) for x in operands())
    with torch.inference_mode():
        out = sc_matmul(a, b)
        assert out.is_inference() and not out.requires_grad
        assert torch.equal(sc_matmul(out, out), sc_matmul(out.clone(), out.clone()))
        assert len(OPS.grouped_symmetric_quant(a, 2, 7)) == 3
    assert torch.equal(out, sc_matmul(a, b))


@pytest.mark.parametrize("dtypes", list(itertools.product(DTYPES, DTYPES)))
def test_operands_may_differ_in_dtype(dtypes):
    a, b = (x.to(dtype) for x, dtype in zip(operands(), dtypes, strict=True))
    assert torch.equal(sc_matmul(a, b), sc_matmul(a.float(), b.float()))
