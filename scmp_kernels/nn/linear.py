"""A linear layer on bit streams."""

import torch
from torch import nn
from torch.nn import functional as F

from scmp_kernels.nn.config import SCConfig, check_module
from scmp_kernels.nn.weights import SCWeight
from scmp_kernels.sc.matmul import sc_matmul


class SCLinear(SCWeight, nn.Linear):
    """``torch.nn.Linear`` whose product is `sc_matmul`.

    The weight is prepared once, and again after it changes. Where it needs a gradient the plain,
    straight-through product runs, with the same bits.

    Args:
        in_features, out_features, bias, device, dtype: as in ``torch.nn.Linear``.
        config: SCConfig, granularity "per_row" or "per_tensor".
        smooth_scales: (in_features,) positive SmoothQuant scales, or None.

    Raises:
        ValueError: an argument does not fit.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        config: SCConfig = SCConfig(),  # noqa: B008  (frozen)
        smooth_scales: torch.Tensor | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._setup(config, smooth_scales)

    @classmethod
    def from_float(
        cls,
        linear: nn.Linear,
        config: SCConfig = SCConfig(),  # noqa: B008
        smooth_scales: torch.Tensor | None = None,
    ) -> "SCLinear":
        """The twin of a ``torch.nn.Linear``: it has the same parameters, not copies.

        Args:
            linear: the layer.
            config, smooth_scales: as of the class.

        Raises:
            ValueError: an argument does not fit.
        """
        check_module("SCLinear.from_float", "linear", linear, nn.Linear)
        has_bias = linear.bias is not None
        new = cls(linear.in_features, linear.out_features, has_bias, "meta", config=config)
        return cls._take_over(linear, new, smooth_scales)

    def _columns(self) -> int:
        return self.in_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the weight, plus the bias in float32.

        Args:
            x: (..., in_features), float16, bfloat16, float32 or float64.

        Returns:
            (..., out_features) in x's dtype.

        Raises:
            ValueError: an argument or the config does not fit, or, in a compiled graph, the weight
                changed since it was prepared.
        """
        if not self.config.enabled:
            return F.linear(x, self.weight, self.bias)
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(
                f"SCLinear: x must have shape (..., in_features) = (..., {self.in_features}), "
                f"got {tuple(x.shape)}"
            )
        rows = x.reshape(x.shape[:-1].numel(), self.in_features)
        weight, knobs = self._operand()
        y = sc_matmul(
            rows,
            weight,
            stoc_len=self.config.lengths(rows, "mlp_metric"),
            group_a=self.config.group_a,
            **knobs,
        )
        if self.bias is not None:
            y = y + self.bias.float()
        return y.to(x.dtype).view(*x.shape[:-1], self.out_features)
