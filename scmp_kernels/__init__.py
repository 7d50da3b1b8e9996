"""Bit-exact stochastic-computing kernels for PyTorch.

``sc_matmul(a, b)`` is ``a @ b.T`` as a stochastic-computing accelerator would compute it, down to
the last bit, on CPU and CUDA. The operators are ``torch.ops.scmp``; docs/semantics.md has the
numbers.
"""

from scmp_kernels import _load

_load.load_library()

from scmp_kernels import mp, quant, qwt, sc, sensitivity  # noqa: E402  (the operators come first)
from scmp_kernels._load import build_info  # noqa: E402
from scmp_kernels.sc import clear_rng_cache, sc_conv2d, sc_matmul  # noqa: E402
from scmp_kernels.sc.conv import conv2d_lowered_rows  # noqa: E402
from scmp_kernels.sc.prepared import Prepared, prepare  # noqa: E402

__version__ = build_info()["version"]

__all__ = [
    "Prepared",
    "__version__",
    "build_info",
    "clear_rng_cache",
    "conv2d_lowered_rows",
    "mp",
    "prepare",
    "quant",
    "qwt",
    "sc",
    "sc_conv2d",
    "sc_matmul",
    "sensitivity",
]
