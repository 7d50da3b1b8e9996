"""What the digits examples share: matrix products, data, a small transformer, training."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from tqdm import tqdm

from scmp_kernels import sc_conv2d, sc_matmul

SC_PREC = 8


# --- products ------------------------------------------------------------------------------------


class FloatMatmul:
    """a @ b^T in float32 for (N, D) and (M, D), or batched; counts its multiply-accumulates."""

    name = "float32"
    mean_length = None  # cycles per multiply-accumulate

    def __init__(self):
        self.reset()

    def reset(self):
        """Set the counter to zero before a forward pass."""
        self.macs = 0

    def __call__(self, a, b):
        """Return a @ b^T: (N, M) float32, or (B, N, M) of (B, N, D) and (B, M, D)."""
        self.macs += a.numel() * b.shape[-2]
        return self.product(a, b)

    def conv2d(self, x, weight, **geometry):
        """Return the convolution (B, Cout, Hout, Wout) float32; geometry as in F.conv2d."""
        y = self.convolution(x, weight, **geometry)
        self.macs += y.numel() * weight[0].numel()
        return y

    def product(self, a, b):
        return a @ b.mT

    def convolution(self, x, weight, **geometry):
        return F.conv2d(x, weight, **geometry)


class StochasticMatmul(FloatMatmul):
    """The same products on streams of `stoc_len` bits.

    A linear layer has one scale per row of activations and of weights, a convolution one per output
    position and per filter; the products inside attention have one per head of every image, or,
    with attention="per_row", one per row as well.
    """

    def __init__(self, stoc_len, attention="per_head"):
        super().__init__()
        self.name = str(stoc_len)
        self.stoc_len = self.mean_length = stoc_len
        self.attention = attention

    def product(self, a, b):
        granularity = "per_row" if a.dim() == 2 else self.attention
        return sc_matmul(a, b, granularity, sc_prec=SC_PREC, stoc_len=self.stoc_len)

    def convolution(self, x, weight, **geometry):
        return sc_conv2d(x, weight, sc_prec=SC_PREC, stoc_len=self.stoc_len, **geometry)


# --- data and model ------------------------------------------------------------------------------


def load_data(seed):
    """Return (train_x, train_y, test_x, test_y): x (N, 8, 8) float32 in [-1, 1], y (N,) int64."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 8 - 1
    labels = torch.tensor(digits.target, dtype=torch.int64)
    train, test = train_test_split(
        range(len(labels)), test_size=0.2, random_state=seed, stratify=digits.target
    )
    return images[train], labels[train], images[test], labels[test]


class Linear(nn.Linear):
    """A linear layer whose product is a parameter of the call."""

    def forward(self, x, matmul):
        y = matmul(x.reshape(-1, self.in_features), self.weight) + self.bias
        return y.view(*x.shape[:-1], self.out_features)


class Block(nn.Module):
    """Pre-norm transformer block: multi-head attention, then an MLP, on (B, T, width) tokens."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = Linear(width, 3 * width), Linear(width, width)
        self.up, self.down = Linear(width, 2 * width), Linear(2 * width, width)

    def attention(self, x, matmul):
        batch, tokens, width = x.shape
        size = width // self.heads
        qkv = self.qkv(x, matmul).view(batch, tokens, 3, self.heads, size)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).reshape(3, -1, tokens, size)  # (B * heads, T, size)
        weights = torch.softmax(matmul(q, k) * size**-0.5, dim=-1)
        mixed = matmul(weights, v.mT)
        mixed = mixed.view(batch, self.heads, tokens, size).transpose(1, 2)
        return self.out(mixed.reshape(batch, tokens, width), matmul)

    def forward(self, x, matmul):
        x = x + self.attention(self.norm1(x), matmul)
        return x + self.down(F.gelu(self.up(self.norm2(x), matmul)), matmul)


class DigitsTransformer(nn.Module):
    """(B, 8, 8) images, read as 8 tokens of one pixel row each, to (B, 10) logits."""

    def __init__(self, width=64, heads=4, blocks=2):
        super().__init__()
        self.embed = Linear(8, width)
        self.position = nn.Parameter(0.2 * torch.randn(8, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = Linear(width, 10)

    def forward(self, images, matmul):
        x = self.embed(images, matmul) + self.position
        for block in self.blocks:
            x = block(x, matmul)
        return self.head(self.norm(x).mean(dim=1), matmul)


def shifted(images):
    """Return the (N, 8, 8) images, each moved by up to one pixel along either axis."""
    padded = F.pad(images, (1, 1, 1, 1), value=-1.0)
    windows = padded.unfold(1, 8, 1).unfold(2, 8, 1)  # (N, 3, 3, 8, 8)
    dy, dx = torch.randint(0, 3, (2, len(images)))
    return windows[torch.arange(len(images)), dy, dx]


@contextmanager
def one_thread():
    """One thread for a while: small steps wait longer for a second than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@one_thread()
def train(
    model, images, labels, epochs, matmul=None, max_lr=4e-3, batch=64, description="training"
):
    """Train with AdamW, a one-cycle learning rate and random shifts of one pixel.

    Args:
        model: called with (B, 8, 8) images and `matmul`; changed in place.
        images, labels: (N, 8, 8) float32 and (N,) int64.
        epochs: passes over the images.
        matmul: the products of the forward pass; None: float32.
        max_lr: the largest learning rate.
        batch: images per step.
        description: of the progress bar.
    """
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    steps = -(-len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=max_lr, epochs=epochs, steps_per_epoch=steps
    )
    matmul = matmul or FloatMatmul()
    bar = tqdm(range(epochs), desc=description, unit="epoch")
    for _ in bar:
        for index in torch.randperm(len(images)).split(batch):
            logits = model(shifted(images[index]), matmul)
            loss = F.cross_entropy(logits, labels[index], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
