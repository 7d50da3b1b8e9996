"""Outputs of the original kernels, bit for bit. Skipped where their files are absent."""

import json

import pytest
import torch
from support import GOLDEN, environment

from scmp_kernels import quant, sc_matmul
from scmp_kernels.sc.config import StreamConfig

MATMUL = ("sc_matmul_public", "sc_matmul_edge_public", "sc_matmul_m64_public")


def entries(*files):
    """One parameter (file, entry) for each entry of the JSON files."""
    return [
        pytest.param(file, entry, id=f"{file}-{entry['i']}-{entry.get('name', entry.get('fn'))}")
        for file in files
        if (GOLDEN / f"{file}.json").exists()
        for entry in json.loads((GOLDEN / f"{file}.json").read_text())
    ]


def array(golden, file, name):
    arrays = golden(file)
    return torch.from_numpy(arrays[name]) if name in arrays else None


@pytest.mark.skipif(not GOLDEN.exists(), reason="no golden files beside this checkout")
def test_the_files_are_complete():
    assert len(entries(*MATMUL)) == 257
    assert len(entries("quant_public")) == 105


@pytest.mark.parametrize(("file", "entry"), entries(*MATMUL))
def test_sc_matmul(file, entry, kernel, golden):
    a, b, y, scales = (array(golden, file, f"{name}{entry['i']}") for name in "abys")
    if "dtype" in entry:
        dtype = getattr(torch, entry["dtype"])
        a, b = a.to(dtype), b.to(dtype)
    with environment(entry["env"]):
        out = sc_matmul(a, b, **entry["kwargs"], config=entry["config"], smooth_scales=scales)
        assert out.dtype == torch.float32 and torch.equal(out, y)
        if entry["config"] is not None:
            config = StreamConfig(entry["config"])
            out = sc_matmul(a, b, **entry["kwargs"], config=config, smooth_scales=scales)
            assert torch.equal(out, y)


@pytest.mark.parametrize(("file", "entry"), entries("quant_public"))
def test_quantizer(file, entry, kernel, golden):
    x = array(golden, file, f"x{entry['i']}")
    outputs = getattr(quant, entry["fn"])(x, *entry["args"], **entry["kwargs"])
    assert len(outputs) == len(entry["outs"])
    for j, (output, expected) in enumerate(zip(outputs, entry["outs"], strict=True)):
        if isinstance(expected, str):
            assert str(output.dtype) == expected
            assert torch.equal(output, array(golden, file, f"o{entry['i']}_{j}"))
        else:
            assert type(output) is type(expected) and output == expected
