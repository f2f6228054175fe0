"""Pictures of runs: latency CDF, accuracy against latency, widths over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slimsched.kernel.errors import SlimError
from slimsched.models.width import WIDTH_TUPLES, WIDTHS
from slimsched.serving.telemetry.trace import Trace

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974")


def plot_runs(traces: Sequence[Trace], title: str, path: Path) -> None:
    """Draw the three pictures side by side; widths are those of the last run."""
    plt = pyplot()
    figure, (cdf, front, widths) = plt.subplots(1, 3, figsize=(15, 5), layout="constrained")
    figure.suptitle(title)
    for number, trace in enumerate(traces):
        row, colour = trace.summary, COLOURS[number % len(COLOURS)]
        _cdf(cdf, trace, colour)
        front.scatter(row.latency_mean_s, 100 * row.accuracy, color=colour, s=70, zorder=3, label=row.router)
    bound = 100 * traces[0].summary.bound_accuracy
    front.axhline(bound, color="black", linestyle="--", linewidth=1)
    front.annotate(f"fluid bound {bound:.2f} %", (1.0, bound), xycoords=("axes fraction", "data"), ha="right")
    front.set(
        xscale="log", xlabel="mean latency (s)", ylabel="accuracy (%)", title="Accuracy against latency"
    )
    cdf.set(xscale="log", xlabel="latency (s)", ylabel="share of answers", title="Latency")
    figure.legend(*front.get_legend_handles_labels(), loc="outside lower center", ncols=9, frameon=False)
    _widths(widths, traces[-1])
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _cdf(axes: Any, trace: Trace, colour: str) -> None:
    ordered = np.sort(trace.latency_s)
    if len(ordered):
        at = np.linspace(0, len(ordered) - 1, min(len(ordered), 500)).astype(int)
        axes.plot(
            np.maximum(ordered[at], 1e-4), (at + 1) / len(ordered), color=colour, label=trace.summary.router
        )


def _widths(axes: Any, trace: Trace) -> None:
    """Share of each width over time, all segments together."""
    seconds = trace.summary.seconds
    edges = np.linspace(0, seconds, 61)
    served = np.array(WIDTH_TUPLES)[trace.tuples] if len(trace.tuples) else np.zeros((0, 4))
    slot = np.clip(np.digitize(trace.answered_s, edges) - 1, 0, 59)
    counts = np.array([np.bincount(slot, weights=(served == w).sum(axis=1), minlength=60) for w in WIDTHS])
    shares = counts / np.maximum(1, counts.sum(axis=0))
    axes.stackplot(edges[:-1], shares, labels=[f"{w:g}" for w in WIDTHS], colors=COLOURS)
    axes.set(xlabel="time (s)", ylabel="share", title=f"Widths served by {trace.summary.router}", ylim=(0, 1))
    axes.legend(loc="upper right", fontsize=8)


def pyplot() -> Any:
    """Matplotlib without a screen."""
    try:
        import matplotlib
    except ImportError:
        raise SlimError(
            "plots need matplotlib; install it with: pip install 'slim-scheduler[plot]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
