"""Outputs of the original kernels, bit for bit, on every CUDA kernel."""

import pytest
import torch
from support import environment, on_cuda_kernel
from test_golden import MATMUL, array, entries

from scmp_kernels import _C, quant, sc_matmul

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.mark.parametrize("cuda_kernel", _C.cuda_kernels())
@pytest.mark.parametrize(("file", "entry"), entries(*MATMUL))
def test_sc_matmul(file, entry, cuda_kernel, golden):
    a, b, y, scales = (array(golden, file, f"{name}{entry['i']}") for name in "abys")
    dtype = getattr(torch, entry.get("dtype", "float32"))
    scales = None if scales is None else scales.cuda()
    with environment(entry["env"]):
        out = on_cuda_kernel(
            cuda_kernel,
            lambda: sc_matmul(
                a.to("cuda", dtype),
                b.to("cuda", dtype),
                **entry["kwargs"],
                config=entry["config"],
                smooth_scales=scales,
            ),
        )
    if out is None:
        pytest.skip("refused")
    assert out.dtype == torch.float32 and torch.equal(out.cpu(), y)


@pytest.mark.parametrize(("file", "entry"), entries("quant_public"))
def test_quantizer(file, entry, golden):
    x = array(golden, file, f"x{entry['i']}").cuda()
    outputs = getattr(quant, entry["fn"])(x, *entry["args"], **entry["kwargs"])
    for j, (output, expected) in enumerate(zip(outputs, entry["outs"], strict=True)):
        if isinstance(expected, str):
            assert str(output.dtype) == expected
            assert torch.equal(output.cpu(), array(golden, file, f"o{entry['i']}_{j}"))
        else:
            assert output == expected
