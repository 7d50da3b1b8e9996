"""Bit-exact stochastic-computing kernels for PyTorch.

``sc_matmul(a, b)`` is ``a @ b.T`` as a stochastic-computing accelerator would compute it, down to
the last bit, on CPU and CUDA. The operators are ``torch.ops.scmp``; docs/semantics.md has the
numbers.
"""

from scmp_kernels import _load

_load.load_library()

from scmp_kernels import (  # noqa: E402  (the operators come first)
    mp,
    nn,
    quant,
    qwt,
    sc,
    sensitivity,
)
from scmp_kernels._load import build_info  # noqa: E402
from scmp_kernels.nn import (  # noqa: E402
    SCConfig,
    calibrate_smoothquant,
    convert,
    revert,
    summary,
)
from scmp_kernels.sc import clear_rng_cache, sc_conv2d, sc_matmul  # noqa: E402
from scmp_kernels.sc.conv import conv2d_lowered_rows  # noqa: E402
from scmp_kernels.sc.prepared import Prepared, prepare  # noqa: E402

__version__ = build_info()["version"]

__all__ = [
    "Prepared",
    "SCConfig",
    "__version__",
    "build_info",
    "calibrate_smoothquant",
    "clear_rng_cache",
    "conv2d_lowered_rows",
    "convert",
    "mp",
    "nn",
    "prepare",
    "quant",
    "qwt",
    "revert",
    "sc",
    "sc_conv2d",
    "sc_matmul",
    "sensitivity",
    "summary",
]
