"""Stochastic-computing matmul: operators, RNG configs and caches."""

from scmp_kernels.sc.conv import sc_conv2d
from scmp_kernels.sc.kernels import clear_rng_cache
from scmp_kernels.sc.matmul import sc_matmul
from scmp_kernels.sc.tuning import det_kernel_tuning

__all__ = ["clear_rng_cache", "det_kernel_tuning", "sc_conv2d", "sc_matmul"]
