"""Running the digits models with different products, and the tables of what comes out."""

import time
from dataclasses import dataclass

import torch
from tqdm import tqdm


def accuracy(logits, labels):
    """Return the share of (N, 10) logits whose largest is at the label (N,)."""
    return (logits.argmax(dim=1) == labels).double().mean().item()


def relative_error(logits, reference):
    """Return the Frobenius norm of the difference over that of the reference."""
    return ((logits - reference).norm() / reference.norm()).item()


@dataclass
class Result:
    """One row of the table."""

    name: str
    accuracy: float
    logit_error: float
    macs_per_second: float
    seconds: float
    length: float | None
    """Cycles per multiply-accumulate; None: float32."""


def finished(y):
    """Wait until `y` is computed, wherever that is."""
    if y.is_cuda:
        torch.cuda.synchronize(y.device)


@torch.inference_mode()
def evaluate(model, images, labels, matmuls, rounds=7, description="evaluating"):
    """Run the test set with every product of `matmuls` (the first: float32); a Result for each.

    Rounds alternate between them, so that load from elsewhere falls on all; the best run counts.
    """
    model.eval()
    logits = [None] * len(matmuls)
    seconds = [[] for _ in matmuls]
    for matmul in matmuls:
        matmul.reset()
        finished(model(images, matmul))  # builds tables
    with tqdm(total=rounds * len(matmuls), desc=description, unit="run") as bar:
        for _ in range(rounds):
            for i, matmul in enumerate(matmuls):
                bar.set_postfix(length=matmul.name)
                matmul.reset()
                start = time.perf_counter()
                logits[i] = model(images, matmul)
                finished(logits[i])
                seconds[i].append(time.perf_counter() - start)
                bar.update()
    return [
        Result(
            name=matmul.name,
            accuracy=accuracy(y, labels),
            logit_error=relative_error(y, logits[0]),
            macs_per_second=matmul.macs / min(times),
            seconds=min(times),
            length=matmul.mean_length,
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


def print_mixed(lengths, groups):
    """Print one row per mean length asked for, and how often each kind beats the first.

    Args:
        lengths: mean lengths.
        groups: {kind: list of results}, one per length; the first kind is the uniform one.
    """
    print(f"{'':>6}" + "".join(f"{kind:^30}" for kind in groups))
    print(f"{'':>6}" + f"{'length':>9} {'accuracy':>9} {'error':>8}  " * len(groups))
    for length, *results in zip(lengths, *groups.values(), strict=True):
        cells = (f"{r.length:>9.2f} {r.accuracy:>9.2%} {r.logit_error:>8.4f}  " for r in results)
        print(f"{length:>6}" + "".join(cells))
    (first, uniform), *others = groups.items()
    for kind, results in others:
        pairs = list(zip(uniform, results, strict=True))
        closer = sum(mixed.logit_error < even.logit_error for even, mixed in pairs)
        better = sum(mixed.accuracy > even.accuracy for even, mixed in pairs)
        worse = sum(mixed.accuracy < even.accuracy for even, mixed in pairs)
        print(
            f"{kind} against {first}: logits closer to float32 at {closer} of {len(pairs)} "
            f"lengths; accuracy better at {better}, worse at {worse}"
        )
