"""The picture of the choices that were served over time: one panel per router, or per router and model."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.dashboard.fault_marks import mark_faults
from slimsched.dashboard.picture import Picture, draw, wrapped
from slimsched.serving.domain.model import ModelOutline
from slimsched.serving.telemetry.live_view import Stages
from slimsched.serving.telemetry.pictures import shades
from slimsched.serving.telemetry.run_folder import Run

BINS = 80
ANSWERS_PER_BIN = 10
LEGEND_COLUMNS = 4


def choices_picture(run: Run) -> Picture:
    """Draw how often each choice was served over time; a column per model where there are several."""
    models, routers = run.about.models, run.routers
    if len(models) > 1:
        columns, lines = len(models), len(routers)
    else:
        columns = 2 if len(routers) == 4 else min(3, len(routers))
        lines = -(-len(routers) // columns)
    panels = [(row, number) for row in range(len(routers)) for number in range(len(models))]

    def paint(axes: Any) -> None:
        for axis, (row, number) in zip(axes.flat, panels, strict=False):
            _panel(axis, run, row, number)
            title = f"{routers[row]}: {models[number].name}" if len(models) > 1 else routers[row]
            axis.set_title(wrapped(title, 90 // columns if columns < 2 else 48), fontsize=9)
            mark_faults(axis, run.about, words=row == 0 and number == 0)
            if row == 0:
                axis.legend(
                    loc="lower left", fontsize=7, ncols=LEGEND_COLUMNS, frameon=True, labelcolor="black"
                )
        for axis in list(axes.flat)[len(panels) :]:
            axis.set_axis_off()

    caption = "Share of segments at each choice over time"
    caption += ", by model. " if len(models) > 1 else ". "
    caption += "Darker is wider; blank means no answers at that time."
    height = 3.2 if lines == 1 else 2.4
    return draw("choices", "Choices over time", caption, paint, columns=columns, rows=lines, height=height)


def _panel(axis: Any, run: Run, row: int, number: int) -> None:
    """Stack the shares of one model's choices under one router."""
    model, seconds = run.about.models[number], run.seconds(row)
    names = Stages([model]).names
    its = run.arrays[f"{row}/model"] == number
    answered_s, plans = run.arrays[f"{row}/answered_s"][its], run.arrays[f"{row}/plan"][its]
    bins = int(np.clip(len(plans) / ANSWERS_PER_BIN, 8, BINS))
    edges = np.linspace(0, seconds, bins + 1)
    slot = np.clip(np.digitize(answered_s, edges) - 1, 0, bins - 1)
    counts = np.zeros((bins, len(names)))
    np.add.at(counts, slot, _choices_by_plan(model, names)[plans])
    shares = (counts / np.maximum(1, counts.sum(axis=1, keepdims=True))).T
    drawn = np.hstack([shares, shares[:, -1:]])  # repeated, so that the last step is drawn too
    colours = shades(len(names), _ramp(run.about.models, number))
    axis.stackplot(edges, drawn, labels=names, colors=colours, step="post", linewidth=0)
    axis.set(xlabel="time (s)", ylabel="share of segments", ylim=(0, 1), xlim=(0, seconds))


def _choices_by_plan(model: ModelOutline, names: list[str]) -> NDArray[np.float64]:
    """Count how often each plan runs each choice (plans, names)."""
    table = np.zeros((len(model.plans), len(names)))
    for plan in range(len(model.plans)):
        for name in model.names_of_plan(plan):
            table[plan, names.index(name)] += 1
    return table


def _ramp(models: tuple[ModelOutline, ...], number: int) -> int:
    """Return the first model that shares a choice's name with this one: such models share their colours."""
    own = {name for names in models[number].segments for name in names}
    for other, model in enumerate(models[:number]):
        if any(own & set(names) for names in model.segments):
            return _ramp(models, other)
    return number
