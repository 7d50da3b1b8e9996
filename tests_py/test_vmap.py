"""torch.vmap: what test_transforms.py does not ask of every operator."""

import itertools

import pytest
import torch
from prepared_cases import OPS
from support import assert_same_bits, assert_value_error, every_device, randn
from torch.func import functional_call, stack_module_state, vmap

from scmp_kernels import SCConfig, mp, prepare, quant, sc_conv2d, sc_matmul
from scmp_kernels.nn import SCConv2d, SCLinear
from scmp_kernels.sc.config_helpers import make_sobol_altseed_config

A, B = randn(3, 5, 16), randn(4, 6, 16, seed=1)
PREPARED = prepare(B[0], chunk_d=5)
METRIC = randn(3, 9).abs()
LEVELS = ([256, 64, 0], [0.25, 0.5, 0.25])


def each(call, *batches):
    return torch.stack([call(*entries) for entries in zip(*batches, strict=True)])


@every_device
def test_both_operands_is_the_batched_call(device):
    a, b = A.to(device), B[:3].to(device)
    assert_same_bits(vmap(sc_matmul)(a, b), sc_matmul(a, b))
    x, weights = randn(2, 3, 6, 5).to(device), randn(3, 4, 3, 3, 3, seed=1).to(device)
    assert_same_bits(
        vmap(lambda w: sc_conv2d(x, w))(weights), each(lambda w: sc_conv2d(x, w), weights)
    )


@pytest.mark.parametrize("in_dims", list(itertools.product((0, 1, -1, None), repeat=2)))
def test_any_dimensions_and_a_prepared_operand(in_dims):
    """Of a and of what `prepare` gets, inside."""
    if in_dims == (None, None):
        return

    def call(a, b):
        return sc_matmul(a, prepare(b, chunk_d=5), stoc_len=64)

    batches = [
        x[0] if dim is None else x[:3].movedim(0, dim)
        for x, dim in zip((A, B), in_dims, strict=True)
    ]
    loops = [
        x[:1].expand(3, -1, -1) if dim is None else x[:3]
        for x, dim in zip((A, B), in_dims, strict=True)
    ]
    assert_same_bits(vmap(call, in_dims)(*batches), each(call, *loops))


def test_nested():
    nested = vmap(vmap(sc_matmul, (0, None)), (None, 0))(A, B)
    assert_same_bits(nested, each(lambda b: each(lambda a: sc_matmul(a, b), A), B))
    more = randn(2, 3, 5, 16)
    expected = each(lambda x: each(lambda a: sc_matmul(a, PREPARED), x), more)
    assert_same_bits(vmap(vmap(lambda a: sc_matmul(a, PREPARED)))(more), expected)
    assert_same_bits(vmap(vmap(lambda a: sc_matmul(a, PREPARED)), 1, 1)(more), expected)
    # b is of the outer level, a of the inner one: neither level has both.
    by_b = vmap(lambda b: vmap(lambda a: sc_matmul(a, prepare(b)))(A))(B)
    assert_same_bits(by_b, nested)
    unused = vmap(lambda b: vmap(lambda a: (a, sc_matmul(A[0], b)))(A)[1])(B)
    assert_same_bits(unused[:, 0], each(lambda b: sc_matmul(A[0], b), B))


def test_chunks_of_the_batch():
    expected = each(lambda a: sc_matmul(a, PREPARED), A)
    assert_same_bits(vmap(lambda a: sc_matmul(a, PREPARED), chunk_size=2)(A), expected)


@pytest.mark.parametrize("expand", [False, True])
def test_a_batch_of_prepared_operands(expand):
    """As an ensemble stacks them."""
    members = [prepare(b, mode="unipolar", expand=expand) for b in B]
    state = stack_module_state(members)
    out = vmap(lambda s: functional_call(members[0], s, (A[0],)))(state)
    assert_same_bits(out, torch.stack([sc_matmul(A[0], member) for member in members]))
    assert_same_bits(members[0](A[0]), out[0])  # nothing of the batch is kept


def test_an_ensemble_of_layers():
    config = SCConfig(stoc_len=64)
    for layer, x in (
        (lambda: SCLinear(16, 4, config=config), A[0]),
        (lambda: SCConv2d(3, 4, 3, config=config), randn(2, 3, 6, 5)),
    ):
        members = [layer().eval().requires_grad_(False) for _ in range(3)]
        state = stack_module_state(members)
        out = vmap(lambda s: functional_call(members[0], s, (x,)))(state)  # noqa: B023
        assert_same_bits(out, torch.stack([member(x) for member in members]))
        batch = torch.stack([x, -x])
        assert_same_bits(vmap(members[0])(batch), each(members[0], batch))


def test_a_config_and_lengths_by_row():
    config = make_sobol_altseed_config(16, 16)
    lengths = torch.tensor([[0, 256, 64, 1, 7], [9, 9, 9, 9, 9], [256, 0, 128, 3, 2]])

    def call(a, lengths):
        return sc_matmul(a, B[0], config=config, stoc_len=lengths)

    assert_same_bits(vmap(call)(A, lengths), each(call, A, lengths))


@pytest.mark.parametrize("b", [B[0], PREPARED], ids=["plain", "prepared"])
def test_gradients(b):
    def loss(rows):
        x = A.clone().requires_grad_()
        return torch.autograd.grad(rows(x).square().sum(), x)[0]

    looped = loss(lambda x: each(lambda a: sc_matmul(a, b), x))
    assert_same_bits(loss(vmap(lambda a: sc_matmul(a, b))), looped)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    def call(x):
        return vmap(lambda a: sc_matmul(a * 2, PREPARED) + 1)(x)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for x in (A, randn(2, 7, 16)):  # the loop is unrolled: another batch is another graph
        assert_same_bits(compiled(x), call(x))


def test_optional_results_and_text():
    """The sums that are not asked for, and the spec of what `prepare` would make."""

    def call(x):
        boundary, scale, zero_point, row_sum = quant.fused_quantize_unipolar(x, 2.0, -1.5, 8)
        assert row_sum is None
        return boundary * scale + zero_point

    assert_same_bits(vmap(call)(A), each(call, A))
    specs = []
    vmap(lambda s: (specs.append(OPS.prepare_spec([6, 16], smooth_scales=s)), s)[1])(
        torch.ones(3, 16)
    )
    assert specs == [OPS.prepare_spec([6, 16], smooth_scales=torch.ones(16))]


def test_levels_of_rows():
    def by_metric(metric):
        return mp.classify_rows_by_metric(metric, *LEVELS).row_stoc_len

    def adaptive(metric):
        config = mp.AdaptiveMPConfig(LEVELS[0], target_fractions=LEVELS[1])
        return mp.adaptive_classify_rows(metric, config).row_stoc_len

    for call in (by_metric, adaptive):
        assert_same_bits(vmap(call)(METRIC), each(call, METRIC))


def test_errors_keep_their_text():
    for b in (B[0], PREPARED):
        with pytest.raises(ValueError, match="^sc_matmul: stoc_len must be in"):
            vmap(lambda a: sc_matmul(a, b, stoc_len=300))(A)  # noqa: B023


def test_what_it_refuses():
    kept = []
    vmap(lambda a: (kept.append(a), a)[1])(A)
    empty = ": the dimension that torch.vmap maps over must have at least 1 entry, got 0"
    for call, text in [
        (lambda: vmap(lambda a: sc_matmul(a, PREPARED))(A[:0]), f"sc_matmul{empty}"),
        (lambda: vmap(lambda x: sc_conv2d(x, x))(randn(0, 3, 3, 1, 1)), f"sc_conv2d{empty}"),
        (
            lambda: sc_matmul(kept[0], PREPARED),
            "sc_matmul: a tensor inside torch.vmap must not be used outside, got one that was",
        ),
    ]:
        assert_value_error(call, text)


def test_values_are_not_read_inside():
    """What turns values into numbers of Python says so."""

    def refused(call, name, batch=METRIC):
        text = f"{name} must be a tensor outside torch.vmap, since its values are read, "
        assert_value_error(lambda: vmap(lambda x: (call(x), x)[1])(batch), f"{text}got one inside")

    config, recorder = mp.RangeMPConfig([256, 64]), mp.CalibrationRecorder([256, 64])
    rows = lambda metric: mp.classify_rows_by_metric(metric, *LEVELS)  # noqa: E731
    refused(
        lambda w: mp.classify_groups_by_range(w, 2, config), "classify_groups_by_range: weight", B
    )
    refused(lambda m: rows(m).level_row_indices, "RowAssignment: row_levels")
    refused(
        lambda m: mp.MPDistributionLogger.log(0, 0, "q", rows(m), 9),
        "MPDistributionLogger.log: assignment",
    )
    refused(lambda a: recorder.record("q", a, B[0]), "CalibrationRecorder.record: a", A)
    refused(lambda b: recorder.record("q", A[0], b), "CalibrationRecorder.record: b", B)
    refused(lambda m: recorder.add("q", m, 1, torch.zeros(9, 2)), "CalibrationRecorder.add: metric")
    with mp.MetricProfiler():
        refused(lambda m: mp.MetricProfiler.record(m, 0, 0, "q"), "MetricProfiler.record: metric")
