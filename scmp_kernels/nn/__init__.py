"""Models on bit streams: layers, attention, and converting whole models.

Importing it needs torch and numpy alone; transformers and timm are never imported.
"""

from scmp_kernels.nn.attention import sc_scaled_dot_product_attention
from scmp_kernels.nn.config import SCConfig
from scmp_kernels.nn.conv import SCConv2d
from scmp_kernels.nn.convert import convert, revert
from scmp_kernels.nn.linear import SCLinear
from scmp_kernels.nn.multihead import SCMultiheadAttention
from scmp_kernels.nn.record import record_products
from scmp_kernels.nn.smooth import calibrate_smoothquant
from scmp_kernels.nn.summary import Summary, summary

__all__ = [
    "SCConfig",
    "SCConv2d",
    "SCLinear",
    "SCMultiheadAttention",
    "Summary",
    "calibrate_smoothquant",
    "convert",
    "record_products",
    "revert",
    "sc_scaled_dot_product_attention",
    "summary",
]
