"""A small model with everything that `convert` meets, for the tests of scmp_kernels.nn."""

import pytest
import torch
from support import randn
from torch import nn
from torch.nn import functional as F

from scmp_kernels import SCConfig, sc_conv2d, sc_matmul
from scmp_kernels.nn import sc_scaled_dot_product_attention
from scmp_kernels.nn.scope import _scopes

SHORT = SCConfig(stoc_len=64)
TORCH_ATTENTION = F.scaled_dot_product_attention


@pytest.fixture
def nothing_left():
    """After the test no scope is left, and torch has its own attention."""
    yield
    for scope in list(_scopes):
        scope.remove()
    assert F.scaled_dot_product_attention is TORCH_ATTENTION


class Attention(nn.Module):
    """Two heads of 4."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), Attention()

    def forward(self, x):
        return x + self.attention(self.norm(x))


class Model(nn.Module):
    """(B, 3, 8, 8) images to (B, 10): a convolution, two blocks, a tied head."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, stride=4)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 10)
        self.codes = nn.Embedding(10, 8)
        self.head.weight = self.codes.weight

    def forward(self, image):
        x = self.embed(image).flatten(2).mT
        return self.head(self.blocks(x).mean(1))


def model(seed=0):
    torch.manual_seed(seed)
    return Model().eval().requires_grad_(False)


IMAGES = randn(2, 3, 8, 8)


def by_hand(m, image, layers=None, attention=None):
    """What a converted `Model` computes; None: in float."""

    def linear(layer, x):
        if layers is None:
            return F.linear(x, layer.weight, layer.bias)
        y = sc_matmul(x.flatten(0, -2), layer.weight, stoc_len=layers.stoc_len)
        y = y if layer.bias is None else y + layer.bias
        return y.view(*x.shape[:-1], -1)

    if layers is None:
        x = F.conv2d(image, m.embed.weight, m.embed.bias, stride=4)
    else:
        x = sc_conv2d(image, m.embed.weight, m.embed.bias, stride=4, stoc_len=layers.stoc_len)
    x = x.flatten(2).mT
    for block in m.blocks:
        a = block.attention
        qkv = linear(a.qkv, block.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        y = sc_scaled_dot_product_attention(
            *qkv, is_causal=True, config=attention or SCConfig(enabled=False)
        )
        x = x + linear(a.out, y.transpose(1, 2).flatten(2))
    return linear(m.head, x.mean(1))
