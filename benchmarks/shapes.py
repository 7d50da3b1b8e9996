"""Shapes and knobs of sc_matmul calls: the one list that benchmarks and tests share."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from scmp_kernels.sc.config_helpers import make_sobol_altseed_config


@dataclass(frozen=True)
class Case:
    """One call: a (n, d) by b (m, d), or (batch, n, d) by (batch, m, d) where batch > 0."""

    name: str
    n: int
    m: int
    d: int
    batch: int = 0
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the call."""
        return max(1, self.batch) * self.n * self.m * self.d

    @property
    def stoc_len(self) -> int:
        """Stream length in cycles that the knobs amount to."""
        base = 2 ** self.kwargs.get("sc_prec", 8)
        halved = self.kwargs.get("halve_bipolar_stoc_len", False)
        unipolar = self.kwargs.get("mode", "bipolar") == "unipolar"
        return self.kwargs.get("stoc_len", base // 2 if halved and not unipolar else base)

    def operands(self, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Normally distributed float32 a and b on the CPU; the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        lead = (self.batch,) if self.batch else ()
        a = torch.randn(*lead, self.n, self.d, generator=generator)
        b = torch.randn(*lead, self.m, self.d, generator=generator)
        return a, b


HALVED = {"halve_bipolar_stoc_len": True}  # L = G = 128 at the default sc_prec of 8
UNIPOLAR_TENSOR = {"granularity": "per_tensor", "mode": "unipolar"}


def _cases(most: int | None) -> Iterator[Case]:
    """Every case, with no size above `most` where one is given."""

    def case(name: str, n: int, m: int, d: int, batch: int = 0, **kwargs: Any) -> Case:
        if most is not None:
            # Different bounds keep the operands apart; d stays long enough for a second chunk.
            n, m, d = min(n, most), min(m, 2 * most + 3), min(d, 4 * most + 5)
            batch = min(batch, 3)
        if "config" in kwargs:
            kwargs["config"] = kwargs["config"](d, d)
        return Case(name, n, m, d, batch, kwargs)

    # The operating point of most users, and what each knob does to it.
    yield case("square_halved", 1024, 1024, 1024, **HALVED)
    yield case("square_chunked", 1024, 1024, 1024, chunk_d=128, **HALVED)
    yield case("square_short", 1024, 1024, 1024, stoc_len=32, **HALVED)
    yield case("square_full", 1024, 1024, 1024)
    yield case("square_full_short", 1024, 1024, 1024, stoc_len=64)
    # Slices of a language model's layers: a prompt against a wide layer, and one token.
    yield case("prompt_mlp", 256, 2048, 2048, chunk_d=128, **HALVED)
    yield case("token_mlp", 1, 4096, 4096, chunk_d=128, **HALVED)
    # Attention of a vision transformer: Q K^T, then softmax times V.
    yield case("attention_qk", 196, 196, 64, 48, granularity="per_head", **HALVED)
    yield case("attention_v", 196, 64, 196, 48, granularity="per_head", **HALVED)
    # The other granularities, modes, grids and sequences.
    yield case("tensor_unipolar", 512, 512, 512, **UNIPOLAR_TENSOR)
    yield case("tensor_bipolar", 512, 512, 512, granularity="per_tensor", **HALVED)
    yield case("row_unipolar", 512, 512, 512, mode="unipolar", stoc_len=128)
    yield case("grouped", 512, 512, 512, group_a=8, group_b=4, chunk_d=64, **HALVED)
    yield case("altseed", 512, 512, 512, config=make_sobol_altseed_config, **HALVED)
    yield case("coarse", 512, 512, 512, sc_prec=4)
    yield case("odd_levels", 512, 512, 512, stoc_len=100, rng_levels=77)
    yield case("fine", 256, 256, 256, sc_prec=10)
    # Sizes that fill no tile, and a call that is all overhead.
    yield case("odd_sizes", 127, 261, 333, chunk_d=100, **HALVED)
    yield case("small", 8, 8, 64, **HALVED)


def benchmark_cases() -> list[Case]:
    """The cases at the sizes to time, a few seconds each on two cores."""
    return list(_cases(None))


def test_cases() -> list[Case]:
    """The same knobs at sizes that the cycle-by-cycle reference answers at once."""
    return list(_cases(37))


def cuda_cases() -> list[Case]:
    """The cases to time on a GPU: layers of a language model, few rows, attention."""
    return [
        # A prompt against a wide layer, and what each knob does to it.
        Case("layer", 2048, 4096, 4096, kwargs=HALVED),
        Case("layer_chunked", 2048, 4096, 4096, kwargs={"chunk_d": 128, **HALVED}),
        Case("layer_short", 2048, 4096, 4096, kwargs={"stoc_len": 64, **HALVED}),
        Case("layer_full", 2048, 4096, 4096),
        Case("layer_down_chunked", 2048, 4096, 14336, kwargs={"chunk_d": 128, **HALVED}),
        # Too few outputs to fill the GPU with tiles: a small layer, and the decoding of tokens.
        Case("small_layer", 128, 768, 2048, kwargs={"stoc_len": 64, "chunk_d": 128, **HALVED}),
        Case("token", 1, 4096, 4096, kwargs=HALVED),
        Case("tokens_8", 8, 4096, 4096, kwargs=HALVED),
        Case("tokens_16", 16, 4096, 4096, kwargs=HALVED),
        # Q K^T of 32 heads, and zero points.
        Case("heads", 1024, 1024, 128, 32, {"granularity": "per_head", **HALVED}),
        Case("tensor_unipolar", 2048, 4096, 1024, kwargs=UNIPOLAR_TENSOR),
    ]


test_cases.__test__ = False  # not a test itself, where pytest sees it imported
