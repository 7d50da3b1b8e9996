"""What a small warm call costs."""

import time

import pytest
import torch

from scmp_kernels import sc_matmul
from scmp_kernels.sc import config_helpers


def best_median(call, rounds=15, calls=200):
    """Seconds per call: the least of several medians, which noise can only raise."""
    for _ in range(100):
        call()
    medians = []
    for _ in range(rounds):
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        medians.append(sorted(times)[calls // 2])
    return min(medians)


@pytest.mark.parametrize("knobs", [{}, {"halve_bipolar_stoc_len": True}])
def test_8x64_by_8x64_takes_at_most_40_microseconds(knobs):
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    assert best_median(lambda: sc_matmul(a, b, **knobs)) <= 40e-6


def test_a_config_from_the_helpers_costs_no_more():
    """It travels as a digest: no work that grows with the number of positions."""
    a, b = torch.randn(8, 64), torch.randn(8, 64)
    config = config_helpers.make_sobol_simple_config(64, 64)
    assert best_median(lambda: sc_matmul(a, b, config=config)) <= 40e-6
