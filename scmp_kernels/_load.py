"""Loads the operator library, after checking that it fits the running torch."""

import importlib
from typing import Any

import torch


def _release(version: str) -> str:
    return version.split("+")[0]


def load_library() -> None:
    """Import ``_C``, which registers ``torch.ops.scmp``.

    Raises:
        ImportError: no build is there, or it was built against another torch.
    """
    try:
        built = importlib.import_module("scmp_kernels._built_with")
    except ModuleNotFoundError:
        raise ImportError(
            "scmp_kernels is not built: run `pip install --no-build-isolation .` in its checkout"
        ) from None
    same = _release(built.TORCH_VERSION) == _release(torch.__version__)
    if built.CUDA_VERSION:  # the library then links torch's CUDA libraries
        same = same and torch.version.cuda is not None
    if not same:
        raise ImportError(
            f"scmp_kernels was built with torch {built.TORCH_VERSION}, "
            f"running torch {torch.__version__}: reinstall scmp_kernels"
        )
    importlib.import_module("scmp_kernels._C")


def build_info() -> dict[str, Any]:
    """What this build is and what it can run here.

    Returns:
        dict with ``version``, ``torch`` (built against), ``compiler``, ``cuda`` (toolkit version,
        or None when built without), ``cuda_archs`` (list), ``cpu_kernels`` (runnable here, best
        last), ``cuda_kernels``, ``cpu_kernel`` and ``cuda_kernel`` (the forced one, or "auto").
    """
    from scmp_kernels import _C

    info: dict[str, Any] = dict(_C.library_info())
    info["cuda"] = info["cuda"] or None
    info["cuda_archs"] = [arch for arch in info["cuda_archs"].split(";") if arch]
    info["cpu_kernels"] = _C.cpu_kernels()
    info["cpu_kernel"] = _C.cpu_kernel()
    info["cuda_kernels"] = _C.cuda_kernels()
    info["cuda_kernel"] = _C.cuda_kernel()
    return info
