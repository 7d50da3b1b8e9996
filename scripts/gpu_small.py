"""A small set of calls that touches every CUDA kernel: for compute-sanitizer, which is slow."""

import torch

from scmp_kernels import _C, prepare, quant, sc_conv2d, sc_matmul


def forced(kernel: str, *operands: torch.Tensor, **knobs) -> torch.Tensor | None:
    """sc_matmul on one kernel, on the CPU; None where the kernel cannot run it."""
    _C.set_cuda_kernel(kernel)
    try:
        return sc_matmul(*operands, **knobs).cpu()
    except ValueError as error:
        if "cannot run this" not in str(error):
            raise
        return None
    finally:
        _C.set_cuda_kernel("auto")


def main() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(131, 70), torch.randn(133, 70)
    calls = [
        {"stoc_len": length, "rng_levels": levels}
        for length, levels in ((1, 1), (33, 100), (128, 128), (200, 256), (256, 256))
    ]
    calls += [
        {"chunk_d": 16, "halve_bipolar_stoc_len": True},
        {"mode": "unipolar", "group_a": 7},
        {"granularity": "per_tensor", "mode": "unipolar"},
        {"sc_prec": 10},
        {"sc_prec": 12, "stoc_len": 3000},
        {"smooth_scales": torch.rand(70) + 0.5},
    ]
    for knobs in calls:
        on_gpu = {k: v.cuda() if torch.is_tensor(v) else v for k, v in knobs.items()}
        for kernel in ["auto", *_C.cuda_kernels()]:
            rows = 5 if kernel == "few_rows" else len(a)
            actual = forced(kernel, a[:rows].cuda(), b.cuda(), **on_gpu)
            if actual is not None:
                assert torch.equal(actual, sc_matmul(a[:rows], b, **knobs)), (kernel, knobs)
    for expand in (False, True):
        prepared = prepare(b.cuda(), halve_bipolar_stoc_len=True, expand=expand)
        actual = sc_matmul(a.cuda(), prepared).cpu()
        assert torch.equal(actual, sc_matmul(a, b, halve_bipolar_stoc_len=True))
    # Few rows, up to 128, and an a that is smaller than b, each with b as it is and prepared.
    for n, m in ((3, 133), (60, 133), (131, 200)):
        a, b = torch.randn(n, 70), torch.randn(m, 70)
        for knobs in ({"halve_bipolar_stoc_len": True}, {}, {"chunk_d": 16}):
            expected, prepared = sc_matmul(a, b, **knobs), prepare(b.cuda(), **knobs)
            for operand in (b.cuda(), prepared):
                own = {} if operand is prepared else knobs
                assert torch.equal(sc_matmul(a.cuda(), operand, **own).cpu(), expected), (n, knobs)
    heads = torch.randn(3, 5, 20)
    actual = sc_matmul(heads.cuda(), heads.cuda(), "per_head").cpu()
    assert torch.equal(actual, sc_matmul(heads, heads, "per_head"))
    for x in (torch.randn(9, 33), torch.randn(3, 5000)):
        for run in (
            lambda x: quant.fused_quantize_bipolar_perrow(x, 8),
            lambda x: quant._grouped_symmetric_quant(x, 2, 127),
            lambda x: quant._grouped_asymmetric_quant(x, 1, 255),
        ):
            for got, want in zip(run(x.cuda()), run(x), strict=True):
                assert torch.equal(got.cpu(), want)
    convolutions()
    lengths_by_row()
    print("all equal")


def convolutions() -> None:
    """Gathered, depthwise and grouped, plain and prepared."""
    x = torch.randn(3, 6, 9, 11)
    for out, groups in ((5, 1), (6, 6), (4, 2)):
        weight = torch.randn(out, 6 // groups, 3, 3)
        for knobs in ({}, {"mode": "unipolar"}, {"group_a": 5}, {"stoc_len": 100}):
            if knobs.get("group_a") and groups == 6:
                continue
            geometry = {"padding": 1, "stride": (2, 1)}
            expected = sc_conv2d(x, weight, groups=groups, **geometry, **knobs)
            for layout in (torch.contiguous_format, torch.channels_last):
                on_gpu = x.cuda().to(memory_format=layout)
                actual = sc_conv2d(on_gpu, weight.cuda(), groups=groups, **geometry, **knobs)
                assert torch.equal(actual.cpu(), expected), (out, groups, knobs)
            if "mode" not in knobs:
                ready = prepare(weight.cuda(), groups=groups)
                actual = sc_conv2d(x.cuda(), ready, **geometry, **knobs).cpu()
                assert torch.equal(actual, expected), (out, groups, knobs)


def lengths_by_row() -> None:
    """Rows, and rows by chunk, of different lengths on every kernel, a larger or smaller than b."""
    for n, m, d, chunk, most in (
        (70, 33, 90, 0, 256),
        (70, 33, 90, 16, 128),
        (131, 200, 70, 0, 255),
        (131, 200, 70, 0, 128),
        (131, 200, 70, 40, 128),
    ):
        knobs = {"chunk_d": chunk, "halve_bipolar_stoc_len": most == 128}
        a, b = torch.randn(n, d), torch.randn(m, d)
        chunks = -(-d // chunk) if chunk else 1
        lengths = torch.arange(n * chunks).view(n, chunks) * 7 % (most + 1)
        lengths = lengths if chunk else lengths[:, 0].contiguous()
        expected = sc_matmul(a, b, stoc_len=lengths, **knobs)
        for kernel in ["auto", *_C.cuda_kernels()]:
            rows_taken = 5 if kernel == "few_rows" else len(a)
            on_gpu = lengths[:rows_taken].cuda()
            actual = forced(kernel, a[:rows_taken].cuda(), b.cuda(), stoc_len=on_gpu, **knobs)
            assert actual is None or torch.equal(actual, expected[:rows_taken]), kernel


if __name__ == "__main__":
    main()
