"""Plots the fronts of several models side by side, one panel per cost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slimsched.core.config import DataError
from slimsched.models.front import CostFront, unbeaten

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
COLUMNS = 2


def plot_fronts(fronts: Sequence[CostFront], path: Path) -> None:
    """Draw every plan as a dot and each model's front as a line; all panels share the axis of accuracy."""
    from matplotlib import pyplot

    columns = min(COLUMNS, len(fronts))
    rows = -(-len(fronts) // columns)
    size = (6.4 * columns, 0.6 + 4.2 * rows)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    for place in axes.flat[len(fronts) :]:
        place.set_visible(False)
    for front, place in zip(fronts, axes.flat, strict=False):
        _draw(front, place)
    for row in axes:
        row[0].set_ylabel("top-1 accuracy, %", fontsize=13)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), fontsize=13, frameon=False)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write plot {path}: {error}; name a .png, .svg or .pdf") from None
    finally:
        pyplot.close(figure)


def _draw(front: CostFront, axes: Any) -> None:
    for number, model in enumerate(front.models):
        colour, points = COLOURS[number % len(COLOURS)], front.of(model)
        best = unbeaten(points)
        axes.plot(
            [one.cost for one in points],
            [one.accuracy_percent for one in points],
            ".",
            color=colour,
            alpha=0.25,
            markersize=5,
        )
        axes.plot(
            [one.cost for one in best],
            [one.accuracy_percent for one in best],
            "o-",
            color=colour,
            label=model,
            markersize=5,
            linewidth=2,
        )
    costs = [point.cost for point in front.points]
    if max(costs) > 4 * min(costs):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(_labelled)
    axes.set_xlabel(front.cost, fontsize=13)
    axes.tick_params(labelsize=11)
    axes.tick_params(axis="x", which="minor", labelsize=9)
    axes.grid(alpha=0.3)


def _labelled(value: float, position: int | None = None) -> str:
    """Label ticks that begin with 2 or 5, so that labels do not touch."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""
