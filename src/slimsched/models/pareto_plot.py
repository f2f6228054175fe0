"""Plots accuracy against arithmetic."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slimsched.core.config import DataError
from slimsched.models.pareto import ParetoPoint


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
