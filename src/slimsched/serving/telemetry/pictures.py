"""Pictures of runs: latency CDF, accuracy against latency, choices over time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import SlimError
from slimsched.serving.domain.model import ModelOutline, ServedModel, outlines
from slimsched.serving.telemetry.live_view import Stages
from slimsched.serving.telemetry.meter import AnswerArrays, Trace

# -- The colours of choices, from narrow to wide: the same in pictures and on the dashboard's light page.

RAMPS = (
    ("#a9d3f5", "#4488d4", "#1a3a78"),
    ("#b5e3bf", "#3f9a63", "#124a2a"),
    ("#f8d7a6", "#d1842c", "#703307"),
    ("#dec9f5", "#8f61c9", "#432073"),
)
"""Narrow, middle and wide, as `--narrow0`, `--middle0`, … of `dashboard.css`; a ramp per family of models."""

Triple = tuple[float, float, float]


def shades(number: int, ramp: int = 0) -> list[str]:
    """Return colours for a number of choices, from narrow to wide."""
    stops = RAMPS[ramp % len(RAMPS)]
    places = [n / (number - 1) for n in range(number)] if number > 1 else [0.67]
    return [
        _mix(stops[0], stops[1], 2 * at) if at < 0.5 else _mix(stops[1], stops[2], 2 * at - 1)
        for at in places
    ]


def _mix(one: str, other: str, share: float) -> str:
    """Mix two colours in the space Oklab, as browsers do for `color-mix(in oklab, …)`."""
    whole = round(100 * share) / 100  # the page writes whole per cents
    a, b = _oklab(one), _oklab(other)
    return _hex((a[0] + (b[0] - a[0]) * whole, a[1] + (b[1] - a[1]) * whole, a[2] + (b[2] - a[2]) * whole))


def _oklab(colour: str) -> Triple:
    red, green, blue = (_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5))
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def _hex(lab: Triple) -> str:
    light, a, b = lab
    long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (light - 0.0894841775 * a - 1.2914855480 * b) ** 3
    parts = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(1.0, max(0.0, part)))):02x}" for part in parts)


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else float(((part + 0.055) / 1.055) ** 2.4)


def _gamma(part: float) -> float:
    return 12.92 * part if part <= 0.0031308 else float(1.055 * part ** (1 / 2.4) - 0.055)


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
    answers: AnswerArrays, models: Sequence[ModelOutline], edges: NDArray[np.float64]
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
