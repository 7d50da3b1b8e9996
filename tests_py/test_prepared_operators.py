"""The operators behind prepared operands: schemas, meta, TorchScript."""

import json

import torch
from prepared_cases import (
    KINDS,
    OPS,
    PLAIN_CONFIG,
    kinds,
    pair,
    parts_of,
)
from support import (
    assert_same_bits,
    randn,
)
from torch.library import opcheck

from scmp_kernels import prepare, sc_matmul
from scmp_kernels.sc.config import StreamConfig


@kinds
def test_operators(kind):
    a, b = pair()
    (stored, spec), prepared = parts_of(kind), prepare(b, **KINDS[kind])
    assert json.loads(spec) == json.loads(prepared.spec)
    assert len(stored) == len(prepared.tensors)
    for actual, expected in zip(stored, prepared.tensors, strict=True):
        assert_same_bits(actual, expected)
    for length in (None, 50):
        expected = sc_matmul(a, b, **KINDS[kind], stoc_len=length)
        for operator in (OPS.sc_matmul.prepared, OPS.sc_matmul):
            assert_same_bits(operator(a, stored, spec, stoc_len=length), expected)


def test_a_digest_does_not_get_into_a_spec():
    config = StreamConfig(PLAIN_CONFIG)
    spec = OPS.prepare_spec((6, 16), config=config.digest)
    assert "sha256:" not in spec and "rng_pool" in spec


@kinds
def test_opcheck(kind):
    a = randn(5, 16)
    stored, spec = parts_of(kind)
    opcheck(OPS.sc_matmul.prepared, (a, stored, spec), {"stoc_len": 50})
    opcheck(OPS.sc_matmul.prepared, (a.requires_grad_(), stored, spec))


@kinds
def test_meta(kind):
    a, b = pair()
    stored, spec = parts_of(kind)
    out = OPS.sc_matmul.prepared(a.to("meta"), [x.to("meta") for x in stored], spec)
    assert out.is_meta and out.shape == (5, 6) and out.dtype == torch.float32
    knobs = {k: v.to("meta") if torch.is_tensor(v) else v for k, v in KINDS[kind].items()}
    prepared = prepare(b.to("meta"), **knobs)
    for actual, expected in zip(prepared.tensors, prepare(b, **KINDS[kind]).tensors, strict=True):
        assert actual.is_meta
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert sc_matmul(a.to("meta"), prepared, stoc_len=50).shape == (5, 6)
    assert sc_matmul(a.to("meta"), prepare(b, **KINDS[kind]).to("meta")).shape == (5, 6)


def scripted(a: torch.Tensor, b: list[torch.Tensor], spec: str):
    return torch.ops.scmp.sc_matmul(a, b, spec, stoc_len=50)


def test_torchscript():
    a = randn(5, 16)
    stored, spec = parts_of("chunks")
    assert torch.equal(torch.jit.script(scripted)(a, stored, spec), scripted(a, stored, spec))
