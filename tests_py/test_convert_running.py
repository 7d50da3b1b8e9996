"""Converted models that are copied, trained, compiled, run in threads and wrapped by others."""

import copy
import inspect
import pickle
import threading

import pytest
import torch
from nn_cases import (  # noqa: F401  (a fixture)
    IMAGES,
    SHORT,
    model,
    nothing_left,
)
from support import assert_same_bits, assert_value_error
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import scmp_kernels
from scmp_kernels import SCConfig, convert, revert

pytestmark = pytest.mark.usefixtures("nothing_left")


def test_copies_and_pickles():
    m = convert(model(), SHORT)
    expected = m(IMAGES)
    for other in (copy.deepcopy(m), pickle.loads(pickle.dumps(m))):
        assert_same_bits(other(IMAGES), expected)
        assert other.head.weight is other.codes.weight
        assert_same_bits(revert(other)(IMAGES), model()(IMAGES))
    assert_same_bits(m(IMAGES), expected)
    revert(m)


def test_two_models_and_other_threads():
    """A scope holds for its model and its thread: a float model beside it stays float."""
    m, other, plain = convert(model(), SHORT), convert(model(), SCConfig(stoc_len=8)), model()
    calls = {"m": m, "other": other, "plain": plain}
    expected = {name: call(IMAGES) for name, call in calls.items()}
    wrong = []

    def run(name):
        for _ in range(10):
            if not torch.equal(calls[name](IMAGES), expected[name]):
                wrong.append(name)

    threads = [threading.Thread(target=run, args=(name,)) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    revert(m)
    assert_same_bits(other(IMAGES), expected["other"])


def test_an_error_inside_leaves_no_scope():
    m = convert(model(), SHORT)
    with pytest.raises(ValueError, match="Cin = 4"):
        m(torch.ones(2, 4, 8, 8))
    assert scmp_kernels.nn.scope._current.config is None


def test_training_with_and_without_checkpoints():
    """Recomputed in the backward pass, a block still attends on bit streams."""
    found = []
    for recompute in (False, True):
        m = convert(model(), SHORT).requires_grad_(True).train()
        if recompute:
            block = m.blocks[0]
            m.blocks.forward = lambda x, m=m, block=block: m.blocks[1](
                checkpoint(block, x, use_reentrant=False)
            )
        m(IMAGES).square().sum().backward()
        found.append([p.grad for p in m.parameters()])
    for one, other in zip(*found, strict=True):
        assert_same_bits(one, other)
    before = m(IMAGES)
    torch.optim.SGD(m.parameters(), 0.1).step()
    assert not torch.equal(m(IMAGES), before)


def test_moves_and_casts():
    m = convert(model(), SHORT).bfloat16()
    assert m(IMAGES.bfloat16()).dtype == torch.bfloat16


def test_the_signature_stays():
    m = model()
    before = inspect.signature(m.forward)
    assert inspect.signature(convert(m).forward) == before


def test_fullgraph():
    torch._dynamo.reset()
    m = convert(model(), SHORT, filter=lambda name, _: "blocks.0" not in name)
    compiled = torch.compile(m, fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(IMAGES), m(IMAGES))
    m.head.weight.mul_(2)
    with pytest.raises(ValueError, match="must be as they were prepared"):
        compiled(IMAGES)
    m.eval()
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert_same_bits(compiled(IMAGES), m(IMAGES))
    torch._dynamo.reset()


def test_what_others_put_on_top_is_told():
    m = convert(model(), SHORT)
    block = m.blocks[0]
    mine = block.forward
    block.forward = lambda x: mine(x)
    assert_value_error(
        lambda: revert(m),
        "revert: forward of 'blocks.0' must be as convert left it, got another (undo what replaced "
        "it first)",
    )
    block.forward = mine
    assert_same_bits(revert(m)(IMAGES), model()(IMAGES))


def test_another_patch_on_top(monkeypatch):
    m = convert(model(), SHORT)
    inner = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **k: inner(*a, **k))
    expected = m(IMAGES)
    other = convert(model(), SHORT)
    assert_same_bits(other(IMAGES), expected)
    monkeypatch.undo()
    revert(m)
    revert(other)


def test_a_forward_of_the_instance_comes_back():
    m = model()
    block = m.blocks[0]
    own = block.forward = lambda x: type(block).forward(block, x) + 1
    before = m(IMAGES)
    convert(m, SHORT)
    assert not torch.equal(m(IMAGES), before)
    revert(m)
    assert block.forward is own
    assert_same_bits(m(IMAGES), before)


def test_a_compiled_float_model_stays_float_beside_a_converted_one():
    torch._dynamo.reset()
    plain = torch.compile(model(), fullgraph=True, backend="eager")
    before = plain(IMAGES)
    m = convert(model(), SHORT)
    assert_same_bits(plain(IMAGES), before)
    m(IMAGES)
    revert(m)
    assert_same_bits(plain(IMAGES), before)
    torch._dynamo.reset()
