"""A convolution on bit streams."""

from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from scmp_kernels.mp import RowAssignment
from scmp_kernels.nn.config import SCConfig, check_module
from scmp_kernels.nn.weights import SCWeight
from scmp_kernels.sc.conv import conv2d_lowered_rows, sc_conv2d

_Size = int | tuple[int, int]


class SCConv2d(SCWeight, nn.Conv2d):
    """``torch.nn.Conv2d`` whose products are `sc_conv2d`.

    The weight is prepared once, and again after it changes. Where it needs a gradient the plain,
    straight-through product runs, with the same bits; so it does with groups where `prepare` does
    not take the config.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype: as in ``torch.nn.Conv2d``.
        config: SCConfig, granularity "per_row" or "per_tensor"; with groups, mp that classifies
            rows does not apply.
        smooth_scales: (in_channels * kh * kw,) positive SmoothQuant scales, or None.

    Raises:
        ValueError: an argument does not fit.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Size,
        stride: _Size = 1,
        padding: _Size | str = 0,
        dilation: _Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        config: SCConfig = SCConfig(),  # noqa: B008  (frozen)
        smooth_scales: torch.Tensor | None = None,
    ) -> None:
        geometry = (kernel_size, stride, padding, dilation, groups)
        super().__init__(in_channels, out_channels, *geometry, bias, padding_mode, device, dtype)
        self._setup(config, smooth_scales)

    @classmethod
    def from_float(
        cls,
        conv: nn.Conv2d,
        config: SCConfig = SCConfig(),  # noqa: B008
        smooth_scales: torch.Tensor | None = None,
    ) -> "SCConv2d":
        """The twin of a ``torch.nn.Conv2d``: it has the same parameters, not copies.

        Args:
            conv: the layer.
            config, smooth_scales: as of the class.

        Raises:
            ValueError: an argument does not fit.
        """
        check_module("SCConv2d.from_float", "conv", conv, nn.Conv2d)
        geometry: tuple[Any, Any, Any, Any, Any] = (
            conv.kernel_size,
            conv.stride,
            conv.padding,
            conv.dilation,
            conv.groups,
        )
        has_bias, channels = conv.bias is not None, (conv.in_channels, conv.out_channels)
        new = cls(*channels, *geometry, has_bias, conv.padding_mode, "meta", config=config)
        return cls._take_over(conv, new, smooth_scales)

    def _columns(self) -> int:
        return self.in_channels * self.kernel_size[0] * self.kernel_size[1]

    def _check(self, config: SCConfig) -> None:
        super()._check(config)
        if self.groups > 1 and config.mp is not None and not isinstance(config.mp, RowAssignment):
            raise ValueError(
                "SCConv2d: mp must be a RowAssignment or None with groups > 1, whose products "
                f"have rows of their own, got {type(config.mp).__name__} with {self.groups} groups"
            )

    def _preparable(self) -> bool:
        if self.groups == 1:
            return super()._preparable()
        knobs = self.config
        fits = knobs.granularity == "per_row" and knobs.chunk_d == 0 and self.smooth_scales is None
        return fits and super()._preparable()

    def _prepare_knobs(self):
        return {**super()._prepare_knobs(), "groups": self.groups}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The convolution, plus the bias in float32.

        Args:
            x: (B, Cin, H, W) or (Cin, H, W), float16, bfloat16, float32 or float64.

        Returns:
            (B, Cout, Hout, Wout) or (Cout, Hout, Wout) in x's dtype and memory format.

        Raises:
            ValueError: an argument or the config does not fit, or, in a compiled graph, the weight
                changed since it was prepared.
        """
        if not self.config.enabled:
            return nn.Conv2d.forward(self, x)
        x, geometry = self._padded(x)
        lengths = self.config.stoc_len
        if self.config.mp is not None:
            lengths = self.config.lengths(self._rows(x, geometry), "mlp_metric")
        weight, knobs = self._operand()
        return sc_conv2d(
            x,
            weight,
            self.bias,
            stoc_len=lengths,
            group_a=self.config.group_a,
            **geometry,
            **knobs,
        )

    def _padded(self, x: torch.Tensor):
        """x, and what is left of the geometry: zeros are padded by the convolution."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return x, {"stride": self.stride, "padding": padding, "dilation": self.dilation}

    def _rows(self, x: torch.Tensor, geometry) -> Any:
        """(B * Hout * Wout, D), or without columns where the rows are an assignment's."""
        if isinstance(self.config.mp, RowAssignment):
            return x.new_empty(len(self.config.mp.row_levels), 0)
        return conv2d_lowered_rows(x.detach(), self.weight.detach(), **geometry)

    def lowered_rows(self, x: torch.Tensor) -> torch.Tensor | None:
        """(B * Hout * Wout, Cin * kh * kw) float32 that meet the weight; None with groups."""
        x, geometry = self._padded(x.detach())
        return conv2d_lowered_rows(x, self.weight.detach(), groups=self.groups, **geometry)
