"""SC-aware training: the digits transformer learns with bit streams in its forward pass.

A transformer trained in float32 loses accuracy when its products run on short streams. Here it is
trained for a few more epochs with `scmp_kernels.sc_matmul` in the forward pass: the loss sees what
the hardware would compute, the gradients are straight through (those of a @ b^T). Prints accuracy
on held-out digits for several seeds, each with its own split, and draws it against stream length.

    python examples/digits_qat.py             about three minutes
    python examples/digits_qat.py --quick     some seconds, one seed, trained too little

Columns, accuracy on the held-out fifth (last row: the mean cross-entropy):
    float32         the float model, in float32
    post-training   the float model at --stoc-len
    float-tuned     the same at --stoc-len after as many more epochs in float32: the control, which
                    tells more training apart from training on streams
    SC-aware        the same at --stoc-len after as many more epochs on streams of that length
"""

import argparse
import copy
from typing import NamedTuple

import matplotlib
import torch
import torch.nn.functional as F
from digits_evaluate import accuracy
from digits_model import (
    SC_PREC,
    DigitsTransformer,
    FloatMatmul,
    StochasticMatmul,
    load_data,
    one_thread,
    train,
)

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

LENGTHS = (64, 32, 16, 8)
KINDS = ("post-training", "float-tuned", "SC-aware")


class Score(NamedTuple):
    """How well a model does on held-out images."""

    accuracy: float
    loss: float
    """Mean cross-entropy: less of a lottery than the share of a few hundred images."""


def trained(seed, data, stoc_len, epochs, tuning_epochs):
    """Return {kind: model} of one seed; the tuned ones start from the float one, equal batches."""
    images, labels = data[:2]
    torch.manual_seed(seed)
    model = DigitsTransformer()
    train(model, images, labels, epochs, description=f"seed {seed}: float32")
    models = {"post-training": model}
    for kind, matmul in (("float-tuned", FloatMatmul()), ("SC-aware", StochasticMatmul(stoc_len))):
        models[kind] = copy.deepcopy(model)
        torch.manual_seed(seed + 1000)  # the same batches and shifts for both
        train(
            models[kind],
            images,
            labels,
            tuning_epochs,
            matmul,
            description=f"seed {seed}: {kind}",
        )
    return models


def score(logits, labels):
    """Return the Score of (N, 10) logits."""
    return Score(accuracy(logits, labels), F.cross_entropy(logits, labels).item())


@one_thread()
@torch.inference_mode()
def measure(models, images, labels, lengths):
    """Return {(kind, stream length): Score}, and ("float32", None) for the float model."""
    found = {("float32", None): score(models["post-training"](images, FloatMatmul()), labels)}
    for kind, model in models.items():
        for length in lengths:
            found[kind, length] = score(model(images, StochasticMatmul(length)), labels)
    return found


def run(seeds, stoc_len, epochs, tuning_epochs):
    """Train and measure every seed; return a list of what `measure` returns."""
    lengths = sorted({*LENGTHS, stoc_len}, reverse=True)
    results = []
    for seed in seeds:
        data = load_data(seed)
        models = trained(seed, data, stoc_len, epochs, tuning_epochs)
        results.append(measure(models, *data[2:], lengths))
    return results


def mean(results, key, field="accuracy"):
    """Return the mean over the seeds of one number."""
    return sum(getattr(result[key], field) for result in results) / len(results)


def print_table(results, seeds, stoc_len):
    """Print one row of accuracies per seed, their mean, and the mean loss."""
    keys = [("float32", None), *((kind, stoc_len) for kind in KINDS)]
    print(f"{'seed':>6}" + "".join(f"{kind:>15}" for kind, _ in keys))
    for seed, result in zip(seeds, results, strict=True):
        print(f"{seed:>6}" + "".join(f"{result[key].accuracy:>15.2%}" for key in keys))
    print(f"{'mean':>6}" + "".join(f"{mean(results, key):>15.2%}" for key in keys))
    print(f"{'loss':>6}" + "".join(f"{mean(results, key, 'loss'):>15.4f}" for key in keys))


def draw(results, stoc_len, path):
    """Draw accuracy against stream length, mean and range over the seeds, into the file `path`."""
    lengths = sorted({length for _, length in results[0] if length})
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for kind, marker in zip(KINDS, "os^", strict=True):
        values = [[100 * result[kind, length].accuracy for result in results] for length in lengths]
        (line,) = axes.plot(lengths, [sum(v) / len(v) for v in values], marker + "-", label=kind)
        lows, highs = [min(v) for v in values], [max(v) for v in values]
        axes.fill_between(lengths, lows, highs, color=line.get_color(), alpha=0.15, linewidth=0)
    baseline = 100 * mean(results, ("float32", None))
    axes.axhline(baseline, color="black", linestyle="--", label="float32")
    axes.axvline(stoc_len, color="gray", linestyle=":", label=f"trained at {stoc_len}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set(xlabel="stream length [cycles]", ylabel="accuracy [%]")
    seeds = "1 seed" if len(results) == 1 else f"mean and range of {len(results)} seeds"
    axes.set_title(f"SC-aware training on digits, {seeds}")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(argv=None):
    """Run the command line `argv` (None: the process's); return what `run` returns."""
    parser = argparse.ArgumentParser(
        description="Train a small transformer on digits with stochastic computing in the loop."
    )
    parser.add_argument("--output", default="digits_qat.png", help="picture to write")
    parser.add_argument("--stoc-len", type=int, default=16, help="of training (default: 16)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--epochs", type=int, default=60, help="in float32 (default: 60)")
    parser.add_argument("--tuning-epochs", type=int, default=24, help="after them (default: 24)")
    parser.add_argument("--quick", action="store_true", help="1 seed, 10 and 5 epochs: for tests")
    args = parser.parse_args(argv)
    if args.quick:
        args.seeds, args.epochs, args.tuning_epochs = 1, 10, 5

    seeds = range(args.seeds)
    results = run(seeds, args.stoc_len, args.epochs, args.tuning_epochs)
    print(f"accuracy at stream length {args.stoc_len}, sc_prec={SC_PREC}, 360 test images per seed")
    print_table(results, seeds, args.stoc_len)
    draw(results, args.stoc_len, args.output)
    print(f"picture: {args.output}")
    return results


if __name__ == "__main__":
    main()
