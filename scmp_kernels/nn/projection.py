"""The projections of multi-head attention on bit streams."""

import torch
from torch import nn

from scmp_kernels.nn.config import SCConfig
from scmp_kernels.nn.linear import SCLinear

PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class SCProjection(SCLinear):
    """The query, key or value projection of an `SCMultiheadAttention`, whose parameters it uses.

    Args:
        owner: the module.
        index: 0, 1 or 2.
        config: as of `SCLinear`.
    """

    def __init__(self, owner: nn.MultiheadAttention, index: int, config: SCConfig) -> None:
        nn.Module.__init__(self)
        self._owner, self._index = (owner,), index  # in a tuple: not a submodule
        self.out_features, self.in_features = self.weight.shape
        self._setup(config, None)

    def _parameter(self) -> torch.Tensor:
        """The owner's parameter that has the weight in it."""
        packed = self._owner[0].in_proj_weight
        if packed is not None:
            return packed
        return getattr(self._owner[0], f"{PROJECTIONS[self._index]}_weight")

    def _rows(self, packed: torch.Tensor) -> torch.Tensor:
        """This projection's third of the rows."""
        rows = self._owner[0].embed_dim
        return packed[self._index * rows : (self._index + 1) * rows]

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """(embed_dim, in_features)."""
        whole = self._parameter()
        return whole if self._owner[0].in_proj_weight is None else self._rows(whole)

    @property
    def bias(self) -> torch.Tensor | None:  # type: ignore[override]
        """(embed_dim,) or None."""
        packed = self._owner[0].in_proj_bias
        return None if packed is None else self._rows(packed)

    def _sources(self) -> list[torch.Tensor]:
        # The whole parameter: what a compiled graph has as its input.
        return [x for x in (self._parameter(), self.smooth_scales) if x is not None]
