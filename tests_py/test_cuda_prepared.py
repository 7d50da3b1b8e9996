"""Prepared operands on CUDA: the CPU's bits on every kernel; expanded bits, graphs and streams."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prepared_cases import COPIES, HALVED, KINDS, Layer, dequantized, longest, pair, split
from strategies import calls, tensors
from support import assert_same_bits, environment, forced_on_cuda, on_cuda_kernel, randn
from test_cuda import on_cuda, to_cuda
from test_cuda_streams import capture

from scmp_kernels import _C, SCConfig, clear_rng_cache, prepare, sc_matmul
from scmp_kernels.nn import SCLinear

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

OPS = torch.ops.scmp
KNOBS = {"chunk_d": 64, **HALVED}
kinds = pytest.mark.parametrize("kind", KINDS)
either = pytest.mark.parametrize("expand", [False, True])


def outputs(call):
    """(kernel, output on the CPU) of the automatic choice and of each kernel that can run this."""
    for kernel in ("auto", *_C.cuda_kernels()):
        with forced_on_cuda(kernel):
            try:
                out = call()
            except ValueError as error:
                if kernel == "auto" or f"kernel {kernel} " not in str(error):
                    raise
                continue
        assert out.is_cuda
        yield kernel, out.cpu()


def assert_bits(call, expected, context=""):
    for kernel, out in outputs(call):
        assert_same_bits(out, expected, f"({kernel} kernel) {context}")


def prepared_on_cuda(b, knobs):
    """The ways to get a Prepared onto the GPU."""
    there = to_cuda(knobs)
    return {
        "prepared there": prepare(on_cuda(b), **there),
        "moved": prepare(b, **knobs).to("cuda"),
        "expanded there": prepare(on_cuda(b), **there, expand=True),
        "expanded and moved": prepare(b, **knobs, expand=True).cuda(),
    }


def check(a, b, knobs, env=None, lengths=()):
    """Every way onto the GPU, every length and kernel: the bits of the direct call on the CPU."""
    fixed, free = split(knobs)
    lengths = {free.pop("stoc_len", None), *lengths}
    with environment(env or {}):
        expected = {length: sc_matmul(a, b, **fixed, **free, stoc_len=length) for length in lengths}
        ways, device_a = prepared_on_cuda(b, fixed), on_cuda(a)
        for way, prepared in ways.items():
            for length in lengths:

                def call(prepared=prepared, length=length):
                    return sc_matmul(device_a, prepared, **free, stoc_len=length)

                assert_bits(call, expected[length], f"{way}, stoc_len={length}")
        for way, prepared in ways.items():
            back = prepared.to("cpu")
            for length in lengths:
                out = sc_matmul(a, back, **free, stoc_len=length)
                assert_same_bits(out, expected[length], f"{way}, back on the CPU")


# --- the CPU's bits ------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.data())
def test_any_call(data):
    a, b, knobs, env = data.draw(calls())
    lengths = data.draw(st.sets(st.integers(1, longest(knobs)), max_size=1))
    check(a, b, knobs, env, lengths)


@settings(max_examples=40)
@given(st.data())
def test_past_one_tile(data):
    n, m = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 300))
    depth = data.draw(st.one_of(st.integers(1, 300), st.sampled_from((128, 256, 1000))))
    a, b = data.draw(tensors((n, depth))), data.draw(tensors((m, depth)))
    knobs = {
        "halve_bipolar_stoc_len": data.draw(st.booleans()),
        "stoc_len": data.draw(st.sampled_from((None, 128, 127, 97, 64, 33, 16, 1))),
        "chunk_d": data.draw(st.sampled_from((0, 1, 16, 72, 128, 300))),
        "group_a": data.draw(st.sampled_from((1, 4))),
        "group_b": data.draw(st.sampled_from((1, 32))),
    }
    check(a, b, knobs)


@settings(max_examples=60)
@given(st.data())
def test_few_rows_of_any_size(data):
    n, m = data.draw(st.integers(1, 17)), data.draw(st.integers(1, 2000))
    depth = data.draw(st.one_of(st.integers(1, 2000), st.sampled_from((64, 128, 256, 1024))))
    mode, granularity = data.draw(
        st.sampled_from(
            (("bipolar", "per_row"), ("unipolar", "per_row"), ("bipolar", "per_tensor"))
        )
    )
    knobs = {"mode": mode, "granularity": granularity}
    knobs["halve_bipolar_stoc_len"] = data.draw(st.booleans())
    knobs["stoc_len"] = data.draw(st.sampled_from((None, 128, 100, 64, 32, 1)))
    if (mode, granularity) == ("bipolar", "per_row"):
        knobs["chunk_d"] = data.draw(st.sampled_from((0, 16, 100, 128)))
    check(data.draw(tensors((n, depth))), data.draw(tensors((m, depth))), knobs)


LARGE = {
    "halved": (4096, 4096, HALVED),
    "halved-chunks": (4096, 4096, {"chunk_d": 128, **HALVED}),
    "halved-chunks-odd": (4099, 4099, {"chunk_d": 100, "group_b": 3, **HALVED}),
    "halved-short": (4096, 11008, {"chunk_d": 128, "stoc_len": 32, **HALVED}),
    "full": (4099, 2048, {}),
    "full-short-chunks": (2048, 4099, {"chunk_d": 128, "stoc_len": 64}),
    "unipolar": (2048, 2051, {"mode": "unipolar"}),
    "fine": (515, 2048, {"sc_prec": 10}),
}


@pytest.mark.parametrize("name", LARGE)
def test_few_rows_against_a_large_b(name):
    m, depth, knobs = LARGE[name]
    fixed, free = split(knobs)
    a, b = randn(17, depth), randn(m, depth, seed=1)
    expected = sc_matmul(a, b, **knobs)  # a row does not depend on the others
    device_a, device_b = a.cuda(), b.cuda()
    for expand in (False, True):
        prepared = prepare(device_b, **fixed, expand=expand)
        for n in range(1, 18):

            def call(prepared=prepared, n=n):
                return sc_matmul(device_a[:n], prepared, **free)

            assert_bits(call, expected[:n], f"{n=} {expand=}")


@pytest.mark.parametrize("granularity", ["per_row", "per_head", "per_tensor"])
@pytest.mark.parametrize("rows", [1, 5, 17, 130])
def test_batched(granularity, rows):
    a, b = randn(5, rows, 100), randn(5, 75, 100, seed=1)
    check(a, b, {"granularity": granularity, **HALVED}, lengths=(64,))


@kinds
def test_every_kind(kind):
    check(*pair(), KINDS[kind], lengths=(50, 1))


@pytest.mark.parametrize("sc_prec", range(2, 13))
@pytest.mark.parametrize("mode", ["bipolar", "unipolar"])
def test_every_precision_and_both_b_streams(sc_prec, mode):
    """On the full grid a full-length sequence is unscrambled, a shorter one is not."""
    a, b = randn(9, 40, seed=sc_prec), randn(13, 40, seed=sc_prec + 50)
    a[0], b[0] = a[0].sign(), b[0].sign()  # every code at the top
    check(a, b, {"sc_prec": sc_prec, "mode": mode}, lengths=(2**sc_prec - 1, 2 ** (sc_prec - 1)))


@pytest.mark.parametrize("kernel", _C.cuda_kernels())
def test_each_kernel_runs_some_of_this(kernel):
    """Else the tests above would hold of a kernel that refuses everything."""
    prepared = prepare(randn(256, 512).cuda(), chunk_d=128, **HALVED)
    a = randn(200, 512, seed=1).cuda()
    taken = [
        n
        for n in (1, 8, 64, 200)
        if kernel in dict(outputs(lambda n=n: sc_matmul(a[:n], prepared)))
    ]
    assert taken or torch.cuda.get_device_capability() != (9, 0)


def test_nan_stays_in_its_group():
    a, b = randn(20, 64), randn(30, 64, seed=1)
    a[3, 5], b[7, 0], b[9, 1] = float("nan"), float("inf"), float("-inf")
    for knobs in ({}, {"chunk_d": 16}, {"mode": "unipolar"}, {"granularity": "per_tensor"}):
        check(a, b, knobs)
        check(a[:2], b, knobs)


@either
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_empty_sizes(shape, expand):
    n, m, depth = shape
    for knobs in ({}, {"chunk_d": 3}, {"mode": "unipolar"}, {"granularity": "per_tensor"}):
        prepared = prepare(torch.ones(m, depth, device="cuda"), **knobs, expand=expand)
        out = sc_matmul(torch.ones(n, depth, device="cuda"), prepared)
        assert_same_bits(out.cpu(), torch.zeros(n, m))


@kinds
def test_the_buffers_are_those_of_the_cpu(kind):
    b = randn(6, 16)
    expected = prepare(b, **KINDS[kind]).state_dict()
    for way, prepared in prepared_on_cuda(b, KINDS[kind]).items():
        state = prepared.state_dict()
        assert state.pop("_extra_state") == expected["_extra_state"]
        assert state.keys() == expected.keys() - {"_extra_state"}
        for name, buffer in state.items():
            assert buffer.is_cuda
            assert_same_bits(buffer.cpu(), expected[name], f"{name}, {way}")


def test_more_than_2_to_31_codes():
    m, depth = 2**17 + 3, 2**14 + 5
    b = torch.randn(m, depth, device="cuda", dtype=torch.float16)
    a = torch.randn(3, depth, device="cuda", dtype=torch.float16)
    prepared = prepare(b, chunk_d=128, **HALVED)
    columns = torch.tensor([0, 77, m - 1], device="cuda")
    expected = sc_matmul(a.cpu(), b[columns].cpu(), chunk_d=128, **HALVED)
    assert torch.equal(sc_matmul(a, prepared)[:, columns].cpu(), expected)


# --- moved, copied, loaded -----------------------------------------------------------------------


@either
def test_there_and_back_again(expand):
    a, b = randn(9, 200), randn(30, 200, seed=1)
    expected = sc_matmul(a, b, **KNOBS)
    prepared = prepare(b, **KNOBS, expand=expand)
    for device in ("cuda", "cpu", "cuda", "cuda:0", "cpu"):
        prepared = prepared.to(device)
        assert prepared.expand is expand
        assert all(x.device.type == torch.device(device).type for x in prepared.buffers()), device
        for _ in range(2):
            assert_same_bits(sc_matmul(a.to(device), prepared).cpu(), expected, device)


@either
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_gives_the_same_bits(how, expand):
    a, b = randn(9, 200).cuda(), randn(30, 200, seed=1).cuda()
    expected = sc_matmul(a, b, **KNOBS).cpu()
    prepared = prepare(b, **KNOBS, expand=expand)
    for _ in range(2):  # before and after its first use
        twin = COPIES[how](prepared).cuda()
        assert_bits(lambda twin=twin: sc_matmul(a, twin), expected)
        twin.codes.zero_()  # a copy, not a view
        assert_bits(lambda: sc_matmul(a, prepared), expected)


@either
def test_a_cast_changes_nothing(expand):
    a, b = randn(9, 200).cuda(), randn(30, 200, seed=1).cuda()
    prepared = prepare(b, **KNOBS, expand=expand)
    for cast in (torch.float16, torch.float64):
        assert_bits(lambda: sc_matmul(a, prepared.to(cast)), sc_matmul(a, b, **KNOBS).cpu())  # noqa: B023


@either
def test_another_state_is_not_stale(expand):
    """Expanded bits follow the codes that are loaded."""
    a, b, other = randn(9, 200).cuda(), randn(30, 200).cuda(), randn(31, 200, seed=1).cuda()
    prepared = prepare(b, **KNOBS, expand=expand)
    sc_matmul(a, prepared)
    for source, knobs in ((-b, KNOBS), (other, {"stoc_len": 50}), (other, {"mode": "unipolar"})):
        fixed, free = split(knobs)
        prepared.load_state_dict(prepare(source, **fixed).state_dict())
        assert prepared.codes.is_cuda
        assert_bits(lambda: sc_matmul(a, prepared, **free), sc_matmul(a, source, **knobs).cpu())  # noqa: B023


@either
def test_what_it_was_made_of_may_change(expand):
    a, b, scales = randn(9, 200).cuda(), randn(30, 200).cuda(), torch.rand(200).add(0.5).cuda()
    expected = sc_matmul(a, b, smooth_scales=scales).cpu()
    prepared = prepare(b, smooth_scales=scales, expand=expand)
    b.zero_()
    scales.fill_(3)
    assert_bits(lambda: sc_matmul(a, prepared), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@either
def test_a_device_that_is_not_current(expand):
    a, b = randn(70, 200).to("cuda:1"), randn(150, 200, seed=1).to("cuda:1")
    expected = sc_matmul(a.cpu(), b.cpu(), **KNOBS)
    with torch.cuda.device(0):
        prepared = prepare(b, **KNOBS, expand=expand)
        for device in ("cuda:1", "cuda:0", "cuda:1"):
            prepared = prepared.to(device)
            for _ in range(2):
                out = sc_matmul(a.to(device), prepared)
                assert out.device == torch.device(device)
                assert torch.equal(out.cpu(), expected)
    with pytest.raises(ValueError, match="device"):
        sc_matmul(a.to("cuda:0"), prepared)


# --- refused, or NaN -----------------------------------------------------------------------------


def test_operands_on_different_devices():
    a, b = pair()
    with pytest.raises(ValueError, match="device"):
        sc_matmul(a.cuda(), prepare(b))
    with pytest.raises(ValueError, match="device"):
        sc_matmul(a, prepare(b).cuda())
    stored, spec = OPS.prepare(b.cuda()), OPS.prepare_spec(b.shape)
    with pytest.raises(ValueError, match="device"):
        OPS.sc_matmul.prepared(a.cuda(), [stored[0].cpu(), *stored[1:]], spec)
    with pytest.raises(ValueError, match="device"):
        prepare(b.cuda(), smooth_scales=torch.ones(16))


@either
@pytest.mark.parametrize("name", ["SC_OWEN_MODE", "SC_SCRAMBLE_MASKS", "SC_DISABLE_OWEN"])
def test_another_environment(name, expand, monkeypatch):
    a, b = (x.cuda() for x in pair())
    prepared = prepare(b, rng_levels=100, expand=expand)
    monkeypatch.setenv(name, {"SC_OWEN_MODE": "random", "SC_SCRAMBLE_MASKS": "8"}.get(name, "1"))
    with pytest.raises(ValueError, match="^sc_matmul: .*SC_"):
        sc_matmul(a, prepared)


@kinds
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_codes_off_the_grid_give_nan(kind, rows):
    """Those outputs and no others; nothing is read out of bounds (compute-sanitizer looks)."""
    a, b = randn(rows, 16), randn(6, 16, seed=1)
    a[:, [3, 15]] = 1.0  # no code of a is 0 there
    prepared = prepare(b, **KINDS[kind]).cuda()
    device_a = a.cuda()
    clean, codes = sc_matmul(device_a, prepared).cpu(), prepared.codes.clone()
    grid = prepared.rng_levels or longest(KINDS[kind])
    wrong = [grid + 1, -grid - 1, 32767, -32768]
    wrong += [-1, -grid] if prepared.mode == "unipolar" else []
    for code in wrong:
        prepared.codes.copy_(codes)
        prepared.codes[2, 3] = prepared.codes[5, 15] = code
        expected = clean.clone()
        expected[:, [2, 5]] = float("nan")
        assert_bits(lambda: sc_matmul(device_a, prepared), expected, f"{code=}")  # noqa: B023
        expanded = prepare(b.cuda(), **to_cuda(KINDS[kind]), expand=True)
        expanded.load_state_dict(prepared.state_dict())
        assert_bits(lambda: sc_matmul(device_a, expanded), expected, f"{code=} expanded")  # noqa: B023
        torch.cuda.synchronize()
    prepared.codes.copy_(codes)
    assert_bits(lambda: sc_matmul(device_a, prepared), clean)


def test_codes_off_the_grid_stay_in_their_head():
    a, b = randn(3, 5, 16).cuda(), randn(3, 6, 16, seed=1).cuda()
    a[..., 3] = 1.0
    prepared = prepare(b, "per_head")
    expected = sc_matmul(a, prepared).cpu()
    prepared.codes[1, 2, 3] = 257
    expected[1, :, 2] = float("nan")
    assert_bits(lambda: sc_matmul(a, prepared), expected)


@either
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_smooth_scales_give_nan_or_raise(bad, expand, monkeypatch):
    a, b = randn(3, 8).cuda(), randn(5, 8, seed=1).cuda()
    scales = torch.ones(8).cuda()
    good = prepare(b, smooth_scales=scales, expand=expand)
    expected = sc_matmul(a, good).cpu()
    scales[2] = bad
    prepared = prepare(b, smooth_scales=scales, expand=expand)
    for _, out in outputs(lambda: sc_matmul(a, prepared)):
        assert out.isnan().all()
    monkeypatch.setenv("SCMP_SYNC_CHECKS", "1")
    with pytest.raises(ValueError, match="smooth_scales must be positive and finite"):
        prepare(b, smooth_scales=scales)
    assert_bits(
        lambda: sc_matmul(a, good), expected
    )  # not one of the variables that fix a Prepared


# --- gradients and compilation -------------------------------------------------------------------


@either
@kinds
def test_gradients(kind, expand):
    a, b = pair()
    prepared, g = prepare(b.cuda(), **to_cuda(KINDS[kind]), expand=expand), randn(5, 6, seed=2)
    device_a = a.cuda().requires_grad_()
    (grad,) = torch.autograd.grad(sc_matmul(device_a, prepared), device_a, g.cuda())
    expected = (g.double() @ dequantized(b, **KINDS[kind])).float()
    torch.testing.assert_close(grad.cpu(), expected, rtol=1e-4, atol=1e-5)


@either
def test_one_dynamic_graph(expand):
    torch._dynamo.reset()
    layer = Layer(randn(6, 16, seed=1).cuda(), chunk_d=5, expand=expand).cuda()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n in (5, 7, 33, 64, 2):
            a = randn(n, 16).cuda()
            assert torch.equal(compiled(a), layer(a))


@either
def test_reduce_overhead(expand):
    torch._dynamo.reset()
    b = randn(150, 200, seed=1)
    prepared = prepare(b.cuda(), **KNOBS, expand=expand)
    compiled = torch.compile(lambda a: sc_matmul(a, prepared) * 2, mode="reduce-overhead")
    for seed in range(4):
        a = randn(70, 200, seed=seed)
        assert torch.equal(compiled(a.cuda()).cpu(), sc_matmul(a, b, **KNOBS) * 2)


def test_reduce_overhead_of_a_layer_whose_weight_changes():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    layer = SCLinear(200, 150, config=SCConfig(**KNOBS)).cuda().eval().requires_grad_(False)
    compiled = torch.compile(layer, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        a = randn(70, 200, seed=seed).cuda()
        assert torch.equal(compiled(a), layer(a))
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0
    layer.weight.mul_(2)
    with pytest.raises(ValueError, match="must be as they were prepared"):
        compiled(a)
    layer.eval()
    assert torch.equal(compiled(a), layer(a))


# --- graphs and streams --------------------------------------------------------------------------


@either
@pytest.mark.parametrize("rows", [1, 8, 70])
def test_a_graph_replays_with_new_inputs(rows, expand):
    a, b = randn(rows, 200).cuda(), randn(150, 200, seed=1)
    prepared = prepare(b.cuda(), **KNOBS, expand=expand)
    graph, out = capture(lambda: sc_matmul(a, prepared))
    for seed in (5, 6):
        new = randn(rows, 200, seed=seed)
        a.copy_(new)
        graph.replay()
        assert torch.equal(out.cpu(), sc_matmul(new, b, **KNOBS))
    clear_rng_cache()
    torch.cuda.empty_cache()
    junk = [torch.full((1 << 20,), 255, dtype=torch.uint8, device="cuda") for _ in range(50)]
    graph.replay()
    assert torch.equal(out.cpu(), sc_matmul(new, b, **KNOBS))
    del junk


@either
def test_a_graph_of_a_moved_and_loaded_one(expand):
    """Whatever is rebuilt after a move is there after the warm call."""
    a, b = randn(70, 200), randn(150, 200, seed=1)
    prepared = prepare(torch.ones(3, 4), expand=expand).cuda()
    prepared.load_state_dict(prepare(b, **KNOBS).state_dict())
    device_a = a.cuda()
    graph, out = capture(lambda: sc_matmul(device_a, prepared))
    graph.replay()
    assert torch.equal(out.cpu(), sc_matmul(a, b, **KNOBS))


@either
def test_a_side_stream_waits_for_its_producer(expand):
    a, b = randn(70, 200), randn(150, 200, seed=1)
    prepared, device_a = prepare(b.cuda(), **KNOBS, expand=expand), a.cuda()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        late = torch.zeros_like(device_a)
        torch.cuda._sleep(20_000_000)
        late.copy_(device_a)
        out = sc_matmul(late, prepared)
    stream.synchronize()
    assert torch.equal(out.cpu(), sc_matmul(a, b, **KNOBS))


@either
def test_preparing_on_one_stream_for_another(expand):
    a, b = randn(70, 200), randn(150, 200, seed=1)
    device_a, device_b = a.cuda(), b.cuda()
    clear_rng_cache()
    torch.cuda.synchronize()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(first):
        late = torch.zeros_like(device_b)
        torch.cuda._sleep(20_000_000)
        late.copy_(device_b)
        prepared = prepare(late, **KNOBS, expand=expand)
        same = sc_matmul(device_a, prepared)
    second.wait_stream(first)
    with torch.cuda.stream(second):
        other = sc_matmul(device_a, prepared)
    torch.cuda.synchronize()
    for out in (same, other):
        assert torch.equal(out.cpu(), sc_matmul(a, b, **KNOBS))


def test_threads_share_a_prepared_on_their_own_streams():
    """From its first use on: whatever is rebuilt after a move is rebuilt for all of them."""
    a, b = randn(70, 200), randn(150, 200, seed=1)
    lengths, device_a, wrong = (None, 33, 64, 100), a.cuda(), []
    want = [sc_matmul(a, b, **KNOBS, stoc_len=length) for length in lengths]

    def run(i, prepared, ready):
        with torch.cuda.stream(torch.cuda.Stream()):
            ready.wait()
            for _ in range(3):
                out = sc_matmul(device_a, prepared, stoc_len=lengths[i])
                if not torch.equal(out.cpu(), want[i]):
                    wrong.append(lengths[i])

    for _ in range(10):
        clear_rng_cache()
        prepared = prepare(b, **KNOBS, expand=True).cuda()
        torch.cuda.synchronize()
        ready = threading.Barrier(len(lengths))
        threads = [
            threading.Thread(target=run, args=(i, prepared, ready)) for i in range(len(lengths))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


@either
@pytest.mark.parametrize("rows", [1, 8, 70])
def test_a_warm_call_does_not_sync(rows, expand):
    a, b = randn(rows, 200).cuda(), randn(150, 200, seed=1).cuda()
    for knobs in (KNOBS, {"mode": "unipolar"}, {"granularity": "per_tensor"}):
        prepared = prepare(b, **knobs, expand=expand)
        sc_matmul(a, prepared)
        torch.cuda.set_sync_debug_mode("error")
        try:
            sc_matmul(a, prepared)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_scales_in_the_middle_of_another_tensor():
    """Kernels read pairs of them at once."""
    a, b = randn(70, 200).cuda(), randn(150, 200, seed=1).cuda()
    for knobs in ({}, {"chunk_d": 48}):
        prepared = prepare(b, expand=True, **knobs)
        expected = sc_matmul(a, prepared)
        moved = [
            torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape) for x in prepared.tensors
        ]
        for kernel in ("auto", *_C.cuda_kernels()):
            out = on_cuda_kernel(
                kernel, lambda m=moved, p=prepared: OPS.sc_matmul.prepared(a, m, p.spec)
            )
            if out is not None:
                assert_same_bits(out.cpu(), expected.cpu())


def test_bits_follow_codes_that_change_in_place():
    a, b = randn(70, 200).cuda(), randn(150, 200, seed=1).cuda()
    prepared, other = prepare(b, expand=True), prepare(b.flip(0), expand=False)
    sc_matmul(a, prepared)
    for mine, theirs in zip(prepared.buffers(), other.buffers(), strict=True):
        mine.copy_(theirs)
    assert torch.equal(sc_matmul(a, prepared), sc_matmul(a, b.flip(0)))


def test_few_rows_of_different_sizes_from_two_threads():
    """The kernel's shared-memory limit is one for all problems."""
    calls = [({"halve_bipolar_stoc_len": True}, 512), ({}, 16)]
    a, b = randn(8, 512).cuda(), randn(300, 512, seed=1).cuda()
    expected = [sc_matmul(a[:, :d], b[:, :d], **knobs) for knobs, d in calls]

    def run(i):
        knobs, d = calls[i % 2]
        for _ in range(200):
            assert torch.equal(sc_matmul(a[:, :d], b[:, :d], **knobs), expected[i % 2])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
