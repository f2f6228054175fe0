"""A picture of Algorithm 1 at work: instances, utilization and memory of servers over time, with marks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slimsched.serving.scheduling.options import SchedulerOptions
from slimsched.serving.telemetry.fleet_history import (
    BLOCKED,
    FIRST,
    SCALE_UP,
    UNLOAD,
    Change,
    ServerHistory,
)
from slimsched.serving.telemetry.plots import pyplot
from slimsched.serving.telemetry.shades import shades

MARKS = {
    FIRST: ("^", "#3f9a63"),
    SCALE_UP: ("P", "#1a3a78"),
    UNLOAD: ("v", "#8f61c9"),
    BLOCKED["utilization"]: ("x", "#d1842c"),
    BLOCKED["memory"]: ("X", "#b3261e"),
}


Segments = tuple[tuple[str, ...], ...]


def plot_fleets(
    histories: Mapping[str, ServerHistory],
    options_of: Mapping[str, SchedulerOptions],
    segments: Segments,
    title: str,
    path: Path,
) -> None:
    """Draw one column per server: instances by segment and choice, marks, utilization, memory."""
    plt = pyplot()
    figure, axes = plt.subplots(
        4,
        len(histories),
        figsize=(6.5 * len(histories), 10),
        sharex=True,
        squeeze=False,
        layout="constrained",
        gridspec_kw={"height_ratios": [3, 1.6, 1.4, 1.4]},
    )
    figure.suptitle(title)
    for column, (name, history) in enumerate(histories.items()):
        options = options_of[name]
        _instances(axes[0, column], history, segments)
        axes[0, column].set_title(
            f"{name}: U_blk {options.utilization_block:g}, M_max {options.vram_cap_bytes / 1e6:,.0f} MB, "
            f"Q_th {options.scale_trigger}, N_new {options.scale_cap}, t_idle {options.idle_unload_s:g} s",
            fontsize=9,
        )
        _marks(axes[1, column], history)
        _sensors(axes[2, column], axes[3, column], history, options)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _instances(axes: Any, history: ServerHistory, segments: Segments) -> None:
    """Draw how many instances of each segment and choice are loaded, as stacked steps."""
    places = sorted({change.place for change in history.changes})
    times = np.array([0.0, *sorted(change.at_s for change in history.changes)])
    rows = [_counts([one for one in history.changes if one.place == place], times) for place in places]
    colours = {}
    for segment, choices in enumerate(segments):
        for choice, colour in enumerate(shades(len(choices), segment)):
            colours[segment, choice] = colour
    if places:
        axes.stackplot(
            times,
            rows,
            step="post",
            colors=[colours[place[1:]] for place in places],
            labels=[f"segment {segment}, {segments[segment][choice]}" for _, segment, choice in places],
        )
        axes.legend(fontsize=6, ncols=4, loc="upper right")
        axes.margins(y=0.35)
    axes.set_ylabel("instances loaded")


def _counts(changes: list[Change], times: Any) -> Any:
    at = np.array([change.at_s for change in changes])
    total = np.cumsum([change.by for change in changes])
    places = np.searchsorted(at, times, side="right")
    return np.where(places > 0, total[np.maximum(0, places - 1)], 0)


def _marks(axes: Any, history: ServerHistory) -> None:
    """Draw a row of marks for each thing that Algorithm 1 does."""
    for row, (kind, (marker, colour)) in enumerate(MARKS.items()):
        at = [mark.at_s for mark in history.marks if mark.kind == kind]
        axes.scatter(at, [-row] * len(at), marker=marker, s=22, color=colour, linewidths=1)
    axes.set_yticks(
        [-row for row in range(len(MARKS))], [f"{k} ({history.count(k)})" for k in MARKS], fontsize=7
    )
    axes.set_ylim(-len(MARKS) + 0.4, 0.6)


def _sensors(upper: Any, lower: Any, history: ServerHistory, options: SchedulerOptions) -> None:
    at = [one.at_s for one in history.samples]
    upper.plot(at, [100 * one.utilization for one in history.samples], color="#4488d4")
    upper.axhline(100 * options.utilization_block, color="#d1842c", linestyle="--", linewidth=1)
    upper.set(ylabel="utilization (%)", ylim=(0, 105))
    upper.set_title(history.utilization_source, fontsize=8)
    lower.plot(at, [one.memory_bytes / 1e6 for one in history.samples], color="#3f9a63")
    lower.axhline(options.vram_cap_bytes / 1e6, color="#b3261e", linestyle="--", linewidth=1)
    lower.set(ylabel="memory (MB)", xlabel="time (s)")
    lower.set_ylim(bottom=0)
    lower.set_title(history.memory_source, fontsize=8)
