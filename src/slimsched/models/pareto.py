"""The plans worth running: no other plan is at least as accurate for the same or less arithmetic.

Also the fronts of several models side by side, by arithmetic, device time or energy, and their pictures.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from slimsched.core.config import DataError
from slimsched.models.quality import QualityTable
from slimsched.models.spec import ModelFigures, ModelSpec

# -- The front of a model at some cost: arithmetic, device time or energy per example. Imports no torch.


class FrontPoint(Struct, frozen=True, kw_only=True):
    """A plan of a model with one of its costs."""

    model: str
    plan: str
    cost: float
    accuracy_percent: float


class CostFront(Struct, frozen=True, kw_only=True):
    """All plans of some models at one cost. `cost` names it, with its unit."""

    cost: str
    points: tuple[FrontPoint, ...]

    @property
    def models(self) -> list[str]:
        """The models, in order."""
        return list(dict.fromkeys(point.model for point in self.points))

    def of(self, model: str) -> list[FrontPoint]:
        """Return one model's plans."""
        return [point for point in self.points if point.model == model]

    def best(self) -> list[FrontPoint]:
        """Return the plans that no plan of any model beats."""
        return unbeaten(self.points)


def unbeaten(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the plans that no other is as good as for the same or a lower cost, cheapest first."""
    kept: list[FrontPoint] = []
    for point in sorted(points, key=lambda one: (one.cost, -one.accuracy_percent)):
        if not kept or point.accuracy_percent > kept[-1].accuracy_percent:
            kept.append(point)
    return kept


# -- Plots the fronts of several models side by side, one panel per cost.

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


class ParetoPoint(Struct, frozen=True, kw_only=True):
    """A plan with its cost and accuracy."""

    plan: str
    macs: int
    accuracy_percent: float


def all_points(spec: ModelSpec, figures: ModelFigures, quality: QualityTable) -> list[ParetoPoint]:
    """List all plans, cheapest first; equally cheap plans by accuracy, best first."""
    points = [
        ParetoPoint(
            plan=spec.text(plan),
            macs=figures.plan_macs(spec, plan),
            accuracy_percent=round(100 * quality.accuracy(plan), 2),
        )
        for plan in spec.plans
    ]
    return sorted(points, key=lambda point: (point.macs, -point.accuracy_percent))


def pareto_set(points: list[ParetoPoint]) -> list[ParetoPoint]:
    """Return the points that no other point beats, cheapest first."""
    kept: list[ParetoPoint] = []
    for point in points:
        if not kept or point.accuracy_percent > kept[-1].accuracy_percent:
            kept.append(point)
    return kept


# -- Plots accuracy against arithmetic.


def plot_pareto(
    points: list[ParetoPoint], best: list[ParetoPoint], path: Path, published: Mapping[str, float]
) -> None:
    """Draw all plans and the Pareto set; plans with a published accuracy in percent are drawn with it."""
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    figure: Figure
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")

    def draw(chosen: list[ParetoPoint], style: str, label: str, **more: Any) -> None:
        x = [point.macs / 1e6 for point in chosen]
        axes.plot(x, [point.accuracy_percent for point in chosen], style, label=label, **more)

    draw(points, ".", f"all {len(points)} plans", color="0.75")
    draw(best, "o-", f"Pareto set ({len(best)} plans)", color="tab:blue", markersize=4)
    if published:
        compared = [point for point in points if point.plan in published]
        draw(compared, "s", f"the paper's {len(compared)} plans, ours", color="tab:orange", markersize=6)
        axes.plot(
            [point.macs / 1e6 for point in compared],
            [published[point.plan] for point in compared],
            "x",
            color="tab:red",
            label="the same in the paper",
        )
    axes.set(xlabel="million multiply-accumulates per example", ylabel="top-1 accuracy, %", xscale="log")
    axes.grid(alpha=0.3)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.legend(loc="upper left", fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write plot {path}: {error}; name a .png, .svg or .pdf") from None
    finally:
        pyplot.close(figure)
