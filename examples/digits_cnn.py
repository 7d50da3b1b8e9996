"""A small convolutional network on the digits, through `scmp_kernels.sc_conv2d`."""

import torch.nn.functional as F
from digits_model import Linear
from torch import nn


class Conv(nn.Conv2d):
    """A convolution without bias whose product is a parameter of the call, then a batch norm."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, bias=False, **kwargs)
        self.norm = nn.BatchNorm2d(self.out_channels)

    def forward(self, x, matmul):
        y = matmul.conv2d(x, self.weight, padding=self.padding, groups=self.groups)
        return F.relu(self.norm(y))


class DigitsCNN(nn.Module):
    """(B, 8, 8) images to (B, 10) logits: dense 3x3, depthwise 3x3, pointwise 1x1, linear."""

    def __init__(self, width=16):
        super().__init__()
        self.dense = Conv(1, width, 3, padding=1)
        self.depthwise = Conv(width, width, 3, padding=1, groups=width)
        self.pointwise = Conv(width, 2 * width, 1)
        self.head = Linear(2 * width * 4, 10)

    def forward(self, images, matmul):
        x = self.dense(images[:, None], matmul)
        x = F.max_pool2d(self.depthwise(x, matmul), 2)
        x = F.max_pool2d(self.pointwise(x, matmul), 2)
        return self.head(x.flatten(1), matmul)
