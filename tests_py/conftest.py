"""Fixtures and the hypothesis profile."""

import os
import zlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from support import GOLDEN, KERNELS, VARIABLES, forced

settings.register_profile(
    "scmp",
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("scmp")


@pytest.fixture(autouse=True)
def clean(request, monkeypatch):
    """No SC_* variables, and a seed of its own for every test."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    torch.manual_seed(zlib.crc32(request.node.name.encode()))


@pytest.fixture(params=KERNELS)
def kernel(request):
    """Every CPU kernel that this machine can run, forced for the test."""
    with forced(request.param):
        yield request.param


@pytest.fixture(scope="session")
def golden():
    """golden("quant_public") is that file's arrays by name."""
    files = {}

    def load(name):
        if name not in files:
            files[name] = np.load(GOLDEN / f"{name}.npz")
        return files[name]

    yield load
    for file in files.values():
        file.close()
