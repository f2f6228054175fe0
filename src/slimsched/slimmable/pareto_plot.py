"""Accuracy against arithmetic as a picture."""

from pathlib import Path

from slimsched.errors import DataError
from slimsched.slimmable.evaluation import UNIFORM
from slimsched.slimmable.pareto import ParetoPoint

PAPER_UNIFORM_PERCENT = {0.25: 70.30, 0.5: 72.99, 0.75: 74.93, 1.0: 76.43}


def plot_pareto(points: list[ParetoPoint], best: list[ParetoPoint], path: Path) -> None:
    """Draw all tuples, the Pareto set, the uniform widths and the paper's Table I."""
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    figure: Figure
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")

    def draw(chosen: list[ParetoPoint], style: str, label: str, **more: object) -> None:
        x = [point.macs / 1e6 for point in chosen]
        axes.plot(x, [point.accuracy_percent for point in chosen], style, label=label, **more)

    uniform = [point for point in points if point.widths in UNIFORM]
    draw(points, ".", "256 width tuples", color="0.75")
    draw(best, "o-", f"Pareto set ({len(best)} tuples)", color="tab:blue", markersize=4)
    draw(uniform, "s", "uniform widths", color="tab:orange", markersize=7)
    axes.plot(
        [point.macs / 1e6 for point in uniform],
        [PAPER_UNIFORM_PERCENT[point.widths[0]] for point in uniform],
        "x",
        color="tab:red",
        label="paper, Table I",
    )
    axes.set(xlabel="million multiply-accumulates an image", ylabel="top-1 accuracy, %", xscale="log")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write plot {path}: {error}; name a .png, .svg or .pdf") from None
    finally:
        pyplot.close(figure)
