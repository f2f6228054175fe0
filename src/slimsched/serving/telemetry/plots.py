"""Pictures of runs: latency CDF, accuracy against latency, choices over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import SlimError
from slimsched.serving.domain.model import ModelOutline, ServedModel, outlines
from slimsched.serving.telemetry.shades import shades
from slimsched.serving.telemetry.stage import Stages
from slimsched.serving.telemetry.trace import Answers, Trace

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c", "#ccb974")

LEGEND_LETTERS = 190
"""How many letters fit side by side below the pictures."""


def plot_runs(traces: Sequence[Trace], models: Sequence[ServedModel], title: str, path: Path) -> None:
    """Draw the three pictures side by side; the third shows the last run only."""
    plt = pyplot()
    figure, (cdf, front, choices) = plt.subplots(1, 3, figsize=(15, 5), layout="constrained")
    figure.suptitle(title)
    for number, trace in enumerate(traces):
        row, colour = trace.summary, COLOURS[number % len(COLOURS)]
        _cdf(cdf, trace, colour)
        front.scatter(row.latency_mean_s, 100 * row.accuracy, color=colour, s=70, zorder=3, label=row.router)
    bound = 100 * traces[0].summary.bound_accuracy
    _mark_bound(front, bound)
    front.set(xlabel="mean latency (s)", ylabel="accuracy (%)", title="Accuracy against latency")
    cdf.set(xlabel="latency (s)", ylabel="share of answers", title="Latency")
    if any(len(trace.answers.latency_s) for trace in traces):  # an empty axis cannot be logarithmic
        front.set_xscale("log")
        cdf.set_xscale("log")
    handles, names = front.get_legend_handles_labels()
    columns = max(1, min(len(names), LEGEND_LETTERS // (max(map(len, names)) + 6)))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
    _choices(choices, traces[-1], outlines(models, plans=True))
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _mark_bound(axes: Any, bound: float) -> None:
    """Draw the bound, with its label above the line and inside the frame."""
    axes.axhline(bound, color="black", linestyle="--", linewidth=1)
    axes.margins(y=0.12)
    low, high = axes.get_ylim()
    axes.set_ylim(low, max(high, bound + 0.12 * (bound - low)))
    place = {"xycoords": ("axes fraction", "data"), "xytext": (0, 3), "textcoords": "offset points"}
    axes.annotate(f"fluid bound {bound:.2f} %", (0.98, bound), ha="right", fontsize=9, **place)


def _cdf(axes: Any, trace: Trace, colour: str) -> None:
    ordered = np.sort(trace.answers.latency_s)
    if len(ordered):
        at = np.linspace(0, len(ordered) - 1, min(len(ordered), 500)).astype(int)
        axes.plot(
            np.maximum(ordered[at], 1e-4), (at + 1) / len(ordered), color=colour, label=trace.summary.router
        )


def _choices(axes: Any, trace: Trace, models: Sequence[ModelOutline]) -> None:
    """Draw the share of each choice over time, over all segments."""
    edges = np.linspace(0, trace.summary.seconds, 61)
    names, counts = choices_over_time(trace.answers, models, edges)
    shares = counts / np.maximum(1, counts.sum(axis=0))
    axes.stackplot(edges[:-1], shares, labels=names, colors=shades(len(names)))
    axes.set(xlabel="time (s)", ylabel="share", title=f"Choices of {trace.summary.router}", ylim=(0, 1))
    axes.legend(loc="upper right", fontsize=8)


def choices_over_time(
    answers: Answers, models: Sequence[ModelOutline], edges: NDArray[np.float64]
) -> tuple[list[str], NDArray[np.float64]]:
    """Return the names of all choices, and how often each was served per interval (names, intervals)."""
    stages = Stages(models)
    counts = np.zeros((len(stages.names), len(edges) - 1))
    slot = np.clip(np.digitize(answers.answered_s, edges) - 1, 0, len(edges) - 2)
    for number, model in enumerate(models):
        its = answers.model == number
        table = np.zeros((len(model.plans), len(stages.names)))
        for plan in range(len(model.plans)):
            for name in model.names_of_plan(plan):
                table[plan, stages.names.index(name)] += 1
        np.add.at(counts.T, slot[its], table[answers.plan[its]])
    return stages.names, counts


def pyplot() -> Any:
    """Return Matplotlib's pyplot, set up to draw without a screen."""
    try:
        import matplotlib
    except ImportError:
        raise SlimError(
            "plots need matplotlib; install it with: pip install 'slim-scheduler[plot]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
