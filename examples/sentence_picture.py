"""The picture of the sentence similarity example."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import NullLocator  # noqa: E402

MARKERS = "osv^D"


def draw(results, ticks, path):
    """Draw drift and retrieval agreement against the mean stream length.

    Args:
        results: list of Result; the first is float's.
        ticks: stream lengths to name.
        path: of the file.
    """
    reference, *others = results
    kinds = list(dict.fromkeys(r.kind for r in others))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    for kind, marker in zip(kinds, MARKERS, strict=False):
        points = sorted((r.length, r.drift, r.agreement) for r in others if r.kind == kind)
        lengths, drifts, agreements = zip(*points, strict=True)
        left.plot(lengths, drifts, marker=marker, markersize=5, label=kind)
        right.plot(lengths, [100 * a for a in agreements], marker=marker, markersize=5)
    right.axhline(100 * reference.agreement, color="black", linestyle="--", linewidth=1)
    left.set(ylabel="1 - cosine with float32", title="Drift of the embeddings")
    right.set(ylabel="same nearest sentence [%]", title="Retrieval agreement with float32")
    left.set_yscale("log")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("mean stream length [cycles]")
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(kinds), frameon=False)
    figure.savefig(path, dpi=90, pil_kwargs={"optimize": True})
    plt.close(figure)
