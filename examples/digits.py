"""Stochastic computing on a real task: handwritten digits through a small transformer.

Trains a two-block transformer in plain float32 torch on the digits that ship with scikit-learn
(1797 images of 8x8 pixels), then evaluates it on the held-out fifth with every matrix product
(linear layers, Q K^T, attention times V, classifier) replaced by `scmp_kernels.sc_matmul`, at
stream lengths from 256 down to 8. Prints a table and draws accuracy against stream length.

    python examples/digits.py             under a minute on two cores
    python examples/digits.py --quick     a few seconds, a network trained too little

Columns: stream length in cycles; accuracy; relative error of the logits against float32 (Frobenius
norm); stochastic-computing multiply-accumulates per second of the whole forward pass; time of that
pass over the time of float32's.
"""

import argparse
import time
from dataclasses import dataclass

import matplotlib
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from tqdm import tqdm

from scmp_kernels import sc_matmul

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogLocator, NullLocator  # noqa: E402

LENGTHS = (256, 128, 64, 32, 16, 8)
SC_PREC = 8


# --- matrix products -----------------------------------------------------------------------------


class FloatMatmul:
    """a @ b^T in float32 for (N, D) and (M, D), or batched; counts its multiply-accumulates."""

    name = "float32"

    def __init__(self):
        self.macs = 0

    def __call__(self, a, b):
        """Return a @ b^T: (N, M) float32, or (B, N, M) of (B, N, D) and (B, M, D)."""
        self.macs += a.numel() * b.shape[-2]
        return self.product(a, b)

    def product(self, a, b):
        return a @ b.mT


class StochasticMatmul(FloatMatmul):
    """The same product on streams of `stoc_len` bits.

    A linear layer has one scale per row of activations and of weights; the products inside
    attention have one per head of every image.
    """

    def __init__(self, stoc_len):
        super().__init__()
        self.name = str(stoc_len)
        self.stoc_len = stoc_len

    def product(self, a, b):
        granularity = "per_row" if a.dim() == 2 else "per_head"
        return sc_matmul(a, b, granularity, sc_prec=SC_PREC, stoc_len=self.stoc_len)


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


def train(model, images, labels, epochs, batch=64):
    """Train in float32 with AdamW, a one-cycle learning rate and random shifts of one pixel."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # steps this small wait longer for a second thread than it saves
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    steps = -(-len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=4e-3, epochs=epochs, steps_per_epoch=steps
    )
    matmul = FloatMatmul()
    bar = tqdm(range(epochs), desc="training", unit="epoch")
    for _ in bar:
        for index in torch.randperm(len(images)).split(batch):
            logits = model(shifted(images[index]), matmul)
            loss = F.cross_entropy(logits, labels[index], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
    torch.set_num_threads(threads)


# --- evaluation ----------------------------------------------------------------------------------


@dataclass
class Result:
    """One row of the table."""

    name: str
    accuracy: float
    logit_error: float
    macs_per_second: float
    seconds: float


def finished(y):
    """Wait until `y` is computed, wherever that is."""
    if y.is_cuda:
        torch.cuda.synchronize(y.device)


@torch.inference_mode()
def evaluate(model, images, labels, matmuls, rounds=7):
    """Run the test set with every product of `matmuls` (the first: float32); a Result for each.

    Rounds alternate between them, so that load from elsewhere falls on all; the best run counts.
    """
    model.eval()
    logits = [model(images, matmul) for matmul in matmuls]  # also builds tables
    finished(logits[-1])
    seconds = [[] for _ in matmuls]
    with tqdm(total=rounds * len(matmuls), desc="evaluating", unit="run") as bar:
        for _ in range(rounds):
            for matmul, times in zip(matmuls, seconds, strict=True):
                bar.set_postfix(length=matmul.name)
                matmul.macs = 0
                start = time.perf_counter()
                finished(model(images, matmul))
                times.append(time.perf_counter() - start)
                bar.update()
    return [
        Result(
            name=matmul.name,
            accuracy=(y.argmax(dim=1) == labels).double().mean().item(),
            logit_error=((y - logits[0]).norm() / logits[0].norm()).item(),
            macs_per_second=matmul.macs / min(times),
            seconds=min(times),
        )
        for matmul, y, times in zip(matmuls, logits, seconds, strict=True)
    ]


def print_table(results):
    """Print one row per result, with the slowdown against the first."""
    print(f"{'length':>8} {'accuracy':>9} {'logit error':>12} {'SC-MAC/s':>10} {'slowdown':>9}")
    for i, r in enumerate(results):
        speed = f"{r.macs_per_second:.2e}" if i > 0 else "-"
        print(
            f"{r.name:>8} {r.accuracy:>9.2%} {r.logit_error:>12.4f} {speed:>10} "
            f"{r.seconds / results[0].seconds:>8.1f}x"
        )


def draw(results, path):
    """Draw accuracy and relative logit error against the stream length into the file `path`."""
    baseline, *streams = results
    lengths = [int(r.name) for r in streams]
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(6, 6), layout="constrained")
    top.plot(lengths, [100 * r.accuracy for r in streams], "o-", label="stochastic computing")
    top.axhline(100 * baseline.accuracy, color="black", linestyle="--", label="float32")
    top.set(ylabel="accuracy [%]", title="Digits transformer, every matrix product on bit streams")
    top.legend()
    bottom.plot(lengths, [r.logit_error for r in streams], "s-", color="tab:red")
    bottom.set(xlabel="stream length [cycles]", ylabel="relative error of the logits")
    bottom.set_xscale("log", base=2)
    bottom.set_yscale("log")
    bottom.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bottom.yaxis.set_major_formatter("{x:g}")
    bottom.yaxis.set_minor_locator(NullLocator())
    bottom.set_xticks(lengths, [str(n) for n in lengths])
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(
        description="Train a small transformer on digits, evaluate it with stochastic computing."
    )
    parser.add_argument("--output", default="digits_accuracy.png", help="picture to write")
    parser.add_argument("--epochs", type=int, default=60, help="training epochs (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="of split, weights and training")
    parser.add_argument("--quick", action="store_true", help="8 epochs, timed once: for CI")
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where to evaluate (default: the GPU when there is one); training is on the CPU",
    )
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_x, train_y, test_x, test_y = load_data(args.seed)
    model = DigitsTransformer()
    train(model, train_x, train_y, epochs=8 if args.quick else args.epochs)
    matmuls = [FloatMatmul(), *(StochasticMatmul(length) for length in LENGTHS)]
    model, test_x, test_y = (x.to(args.device) for x in (model, test_x, test_y))
    results = evaluate(model, test_x, test_y, matmuls, rounds=1 if args.quick else 7)
    where = args.device if args.device != "cpu" else f"{torch.get_num_threads()} threads"
    print(f"{len(test_x)} test images, sc_prec={SC_PREC}, {where}")
    print_table(results)
    draw(results, args.output)
    print(f"picture: {args.output}")


if __name__ == "__main__":
    main()
