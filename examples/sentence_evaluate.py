"""What comes out of the sentence encoder on bit streams, against its float outputs."""

import time
from dataclasses import dataclass

import torch
from sentence_streams import drifts
from torch.utils._python_dispatch import TorchDispatchMode


def read_sentences(path):
    """Return the groups of a file: lists of sentences, one a line, between blank lines."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    text = "\n".join(line for line in lines if not line.startswith("#"))
    return [group.splitlines() for group in text.strip("\n").split("\n\n") if group.strip()]


@dataclass
class Result:
    """One row of the table.

    Attributes:
        kind: how stream lengths and scales are chosen.
        length: cycles per multiply-accumulate, as run; None: float32.
        drift, worst: mean and maximum over sentences of 1 - cosine(float embedding, this one).
        agreement: share of sentences whose nearest other sentence is the float encoder's.
        paraphrase: share of sentences whose nearest other sentence is of their group.
        seconds: the best pass over all sentences.
    """

    kind: str
    length: float | None
    drift: float
    worst: float
    agreement: float
    paraphrase: float
    seconds: float


class CycleCounter(TorchDispatchMode):
    """Counts multiply-accumulates on bit streams and their cycles, from the calls themselves."""

    def __init__(self):
        super().__init__()
        self.macs, self.cycles = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function.overloadpacket is torch.ops.scmp.sc_matmul:
            names = [argument.name for argument in function._schema.arguments]
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            per_row = out.shape[-1] * given["a"].shape[-1]
            rows = out.numel() // max(out.shape[-1], 1)
            self.macs += rows * per_row
            lengths = given.get("row_stoc_len")
            if lengths is not None:
                self.cycles += int(lengths.sum()) * per_row
            else:
                self.cycles += rows * per_row * given["stoc_len"]
        return out

    @property
    def mean_length(self):
        """Cycles per multiply-accumulate."""
        return self.cycles / self.macs


def nearest(embeddings):
    """Return the index of the nearest other row of each row of (N, D) unit vectors."""
    similarities = embeddings @ embeddings.T
    return similarities.fill_diagonal_(-2).argmax(1)


def compare(embeddings, reference, groups):
    """Return drift, worst, agreement and paraphrase of `Result`.

    Args:
        embeddings, reference: (N, D) unit vectors.
        groups: (N,) int64, the group of each sentence.
    """
    x, exact = embeddings.double().cpu(), reference.double().cpu()
    distances = drifts(x, exact)
    found, wanted = nearest(x), nearest(exact)
    return (
        distances.mean().item(),
        distances.max().item(),
        (found == wanted).double().mean().item(),
        (groups[found] == groups).double().mean().item(),
    )


def measure(kind, encoder, batches, groups, reference=None, rounds=1):
    """Run the encoder as it is; return a Result and the embeddings.

    Args:
        kind: of the Result.
        encoder: Encoder, converted or not.
        batches: of its sentences.
        groups: (N,) int64, the group of each sentence.
        reference: (N, D) embeddings to compare with; None: these are the float ones.
        rounds: passes to time; the one that counts cycles is not timed where there are several.
    """
    counter, seconds = CycleCounter(), []
    for i in range(max(rounds, 1)):
        start = time.perf_counter()
        if i == 0:
            with counter:
                embeddings = encoder(batches)
        else:
            embeddings = encoder(batches)
        if embeddings.is_cuda:
            torch.cuda.synchronize(embeddings.device)
        seconds.append(time.perf_counter() - start)
    length = counter.mean_length if counter.macs else None
    numbers = compare(embeddings, embeddings if reference is None else reference, groups)
    return Result(kind, length, *numbers, min(seconds[1:] or seconds)), embeddings


def print_table(results):
    """Print a row per result."""
    print(
        f"{'streams':<20} {'length':>8} {'drift':>8} {'worst':>8} {'agreement':>10} "
        f"{'paraphrase':>11} {'seconds':>8}"
    )
    for r in results:
        length = "-" if r.length is None else f"{r.length:.2f}"
        print(
            f"{r.kind:<20} {length:>8} {r.drift:>8.4f} {r.worst:>8.4f} {r.agreement:>10.1%} "
            f"{r.paraphrase:>11.1%} {r.seconds:>8.2f}"
        )
