"""The picture that compares routers: accuracy against latency and energy, beside the fluid bound."""

from typing import Any

from slimsched.dashboard.picture import (
    COLOURS,
    INK,
    LETTERS,
    Picture,
    colour,
    draw,
    legend_below,
    legend_height,
    wrapped,
)
from slimsched.serving.telemetry.run_folder import Run

MARKERS = ("o", "s", "^", "D")
"""Routers beyond the last colour have another mark."""


def front_picture(run: Run) -> Picture:
    """Draw each router as a point, the fluid bound, and a line through the routers that no other beats."""
    bound = 100 * run.rows[0]["bound_accuracy"]

    def paint(axes: Any) -> None:
        for axis, key, scale, label in (
            (axes[0, 0], "latency_mean_s", 1e3, "mean latency (ms)"),
            (axes[0, 1], "energy_j_per_request", 1e3, "energy above idle (mJ per arrived request)"),
        ):
            points = {
                number: (
                    scale * row[key] * (_answered(row) if key.startswith("energy") else 1.0),
                    _correct(row),
                )
                for number, row in enumerate(run.rows)
                if row[key] is not None and row["accuracy"] is not None
            }
            front = _pareto_front(list(points.values()))
            if len(front) > 1:
                axis.plot(*zip(*front, strict=True), color=INK, linewidth=0.8, alpha=0.5, zorder=2)
            for number, point in points.items():
                mark = MARKERS[number // len(COLOURS) % len(MARKERS)]
                name = wrapped(run.rows[number]["router"], LETTERS)
                axis.scatter(*point, color=colour(number), marker=mark, s=42, zorder=3, label=name)
            axis.set(xlabel=label, ylabel="arrived requests answered correctly (%)")
            axis.margins(x=0.25, y=0.15)
        _bound_by_latency(axes[0, 0], bound)
        _bound_by_energy(axes[0, 1], run, bound)
        legend_below(axes[0, 0])

    best = max(run.rows, key=lambda row: row["bound_share"])
    caption = (
        f"Accuracy over all arrived requests against latency and energy. No router can exceed {bound:.2f} %, "
    )
    caption += f"or less with less energy. {best['router']} reaches {100 * best['bound_share']:.1f} % of it"
    if len(run.rows) > 1:
        caption += ", the most. The thin line joins the routers that no other beats on both axes."
    else:
        caption += "."
    title = "Accuracy, latency and energy beside the fluid bound"
    return draw("front", title, caption, paint, columns=2, height=3.2 + legend_height(run.routers))


def _bound_by_latency(axis: Any, bound: float) -> None:
    axis.axhline(bound, color=INK, linestyle="--", linewidth=1)
    _leave_room_above(axis, bound)
    place = {"xycoords": ("axes fraction", "data"), "xytext": (0, 3), "textcoords": "offset points"}
    axis.annotate(f"fluid bound {bound:.2f} %", (0.02, bound), fontsize=8, **place)


def _leave_room_above(axis: Any, bound: float) -> None:
    """Leave room for the label between the bound and the top of the picture."""
    low, high = axis.get_ylim()
    axis.set_ylim(low, max(high, bound + 0.12 * (bound - low)))


def _bound_by_energy(axis: Any, run: Run, bound: float) -> None:
    """Draw the bound as a curve over the energy budget; without a curve, draw only its highest value."""
    energy_j, accuracy = run.arrays.get("bound/energy_j"), run.arrays.get("bound/accuracy")
    if energy_j is None or accuracy is None:
        _bound_by_latency(axis, bound)
        return
    low, (left, right) = axis.get_ylim()[0], axis.get_xlim()
    right = max(right, 1.05e3 * float(energy_j[-1]))
    axis.plot([*1e3 * energy_j, right], [*100 * accuracy, 100 * accuracy[-1]], color=INK, ls="--", lw=1)
    axis.set(xlim=(left, right), ylim=(low, None))
    _leave_room_above(axis, bound)
    axis.annotate(
        "fluid bound",
        (right, 100 * accuracy[-1]),
        xytext=(-2, 4),
        textcoords="offset points",
        ha="right",
        fontsize=8,
    )


def _pareto_front(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats; better is less on the first axis and more on the second."""
    front: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda one: (one[0], -one[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front


def _answered(row: dict[str, Any]) -> float:
    return float(row["completed"] / max(1, row["arrived"]))


def _correct(row: dict[str, Any]) -> float:
    return 100 * float(row["accuracy"]) * _answered(row)
