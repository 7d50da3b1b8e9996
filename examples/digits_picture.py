"""The picture of the digits demo."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogLocator, NullLocator  # noqa: E402


def draw(curves, baselines, ticks, path):
    """Draw accuracy and relative logit error against the mean stream length.

    Args:
        curves: list of (label, line style, list of (length, accuracy, logit error)).
        baselines: list of (label, line style, accuracy).
        ticks: stream lengths to name.
        path: of the file.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5.5), layout="constrained")
    for label, style, points in curves:
        lengths, accuracies, errors = zip(*points, strict=True)
        left.plot(lengths, [100 * a for a in accuracies], label=label, markersize=5, **style)
        right.plot(lengths, errors, markersize=5, **style)
    for label, style, accuracy in baselines:
        left.axhline(100 * accuracy, label=label, linewidth=1, **style)
    left.set(ylabel="accuracy [%]", title="Accuracy on held-out digits")
    right.set(ylabel="relative error of the logits", title="Distance from float32")
    right.set_yscale("log")
    right.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    right.yaxis.set_major_formatter("{x:g}")
    right.yaxis.set_minor_locator(NullLocator())
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("mean stream length [cycles]")
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
