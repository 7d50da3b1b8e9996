"""Mixed precision on the digits transformer: stream lengths by row, at the cost of uniform ones.

The cost of a pass is its cycles: stream length times multiply-accumulates. Two ways of spending
what a uniform length L costs, both through `scmp_kernels.mp` and one `sc_matmul` call per product:

    rows         In every product the third of the rows with the largest magnitudes gets 3/2 L, the
                 others 3/4 L.
    calibrated   Every product has its own lengths, with or without that split of its rows, chosen
                 on training images: products that disturb the logits little give cycles to those
                 that disturb them much or are cheap.

On this model "rows" does not beat uniform lengths: the rows of a product are much alike, and a row
loses more by fewer cycles than another gains by more. `l2` and `crest` as metrics did no better
than `amax`. What "calibrated" gains comes from the differences between products.
"""

import torch
from digits_evaluate import relative_error
from digits_model import SC_PREC, FloatMatmul
from tqdm import tqdm

from scmp_kernels import mp, sc_matmul

CALIBRATION_LENGTHS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SPLIT = (1 / 3, 2 / 3)


def one_length(length):
    """Return the plan (levels, fractions) that gives all rows of a product one length."""
    return (length,), (1.0,)


def split_rows(length):
    """Return the plan that gives a third of the rows 3/2, the others 3/4 of a multiple of 4."""
    return (3 * length // 2, 3 * length // 4), SPLIT


class MixedMatmul(FloatMatmul):
    """Products with a plan each, (levels, fractions), in the order in which the model makes them.

    A plan of None is float32. Rows are classified by their largest magnitude, over the whole batch;
    scales are per row, as lengths by row need it. Counts cycles too.
    """

    def __init__(self, name, plans):
        self.name, self.plans = name, plans
        super().__init__()

    def reset(self):
        self.macs = self.cycles = self.calls = 0

    @property
    def mean_length(self):
        """Cycles per multiply-accumulate."""
        return self.cycles / self.macs

    def product(self, a, b):
        plan = self.plans[self.calls]
        self.calls += 1
        if plan is None:
            return super().product(a, b)
        metric = mp.compute_row_metric(a.reshape(-1, a.shape[-1]), "amax")
        lengths = mp.classify_rows_by_metric(metric, *plan).row_stoc_len
        self.cycles += int(lengths.sum()) * a.shape[-1] * b.shape[-2]
        return sc_matmul(a, b, sc_prec=SC_PREC, stoc_len=lengths.view(a.shape[:-1]))


class ProductCosts(FloatMatmul):
    """Float products that record the multiply-accumulates of each."""

    def reset(self):
        super().reset()
        self.costs = []

    def product(self, a, b):
        self.costs.append(a.numel() * b.shape[-2])
        return super().product(a, b)


@torch.inference_mode()
def calibrate(model, images, lengths=CALIBRATION_LENGTHS):
    """Measure what each product's plan does to the logits while all others are float32.

    Args:
        model: called with images and a product.
        images: (N, 8, 8) float32, training images.
        lengths: mean lengths to try.

    Returns:
        shares: list of each product's share of the multiply-accumulates.
        errors: list of {(mean length, plan): squared relative error of the logits}, per product.
    """
    model.eval()
    counter = ProductCosts()
    reference = model(images, counter)
    shares = [cost / counter.macs for cost in counter.costs]
    longest = 2**SC_PREC
    plans = [(length, one_length(length)) for length in lengths]
    plans += [(n, split_rows(n)) for n in lengths if n % 4 == 0 and 3 * n // 2 <= longest]
    errors = [{} for _ in shares]
    with tqdm(total=len(shares) * len(plans), desc="calibrating", unit="run") as bar:
        for i, found in enumerate(errors):
            for length, plan in plans:
                alone = [plan if i == j else None for j in range(len(shares))]
                logits = model(images, MixedMatmul("", alone))
                found[length, plan] = relative_error(logits, reference) ** 2
                bar.update()
    return shares, errors


def allocate(shares, errors, mean_length):
    """Return a plan for every product, with little error and at most the mean length.

    Greedy: from the shortest plans on, the change that saves the most squared error per cycle, as
    if the errors of products added up.
    """
    chosen = [min(found, key=lambda key: key[0]) for found in errors]
    slack = mean_length - sum(share * key[0] for share, key in zip(shares, chosen, strict=True))
    while True:
        best, gain = None, 0.0
        for i, found in enumerate(errors):
            for key, error in found.items():
                cost = shares[i] * (key[0] - chosen[i][0])
                saved = found[chosen[i]] - error
                if cost <= slack and saved > 0 and (cost <= 0 or saved / cost > gain):
                    best, gain = (i, key, cost), saved / cost if cost > 0 else float("inf")
        if best is None:
            return [plan for _, plan in chosen]
        i, key, cost = best
        chosen[i] = key
        slack -= cost


def mixed_matmuls(calibration, lengths):
    """Return products for every mean length: those with lengths by row, then the calibrated."""
    shares, errors = calibration
    rows = [MixedMatmul(f"{n} rows", [split_rows(n)] * len(shares)) for n in lengths]
    return rows + [MixedMatmul(f"{n} calibrated", allocate(shares, errors, n)) for n in lengths]
