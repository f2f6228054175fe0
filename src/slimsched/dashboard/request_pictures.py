"""Pictures of a run that served requests."""

from typing import Any

import numpy as np

from slimsched.dashboard.choices_picture import choices_picture
from slimsched.dashboard.fault_marks import mark_faults
from slimsched.dashboard.front_picture import front_picture
from slimsched.dashboard.picture import (
    INK,
    LETTERS,
    Picture,
    colour,
    draw,
    legend_below,
    legend_height,
    line,
    wrapped,
)
from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.telemetry.run_folder import Run

BINS = 80
LEGEND_LIMIT = 12


def request_pictures(run: Run) -> list[Picture]:
    """Draw all pictures, in reading order."""
    queues = _queues(run) if run.frames else _in_system(run)
    pictures = [_latency(run), front_picture(run), choices_picture(run), queues]
    return [*pictures, _servers(run)] if run.frames else pictures


def _latency(run: Run) -> Picture:
    deadline_s = run.about.config.get("load", {}).get("deadline_s", NEVER_S)

    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        for row, router in enumerate(run.routers):
            ordered = np.sort(run.arrays[f"{row}/latency_s"])
            if len(ordered):
                at = np.linspace(0, len(ordered) - 1, min(len(ordered), 400)).astype(int)
                share = (at + 1) / len(ordered)
                name = wrapped(router, LETTERS)
                axis.plot(1e3 * np.maximum(ordered[at], 1e-4), share, label=name, **line(row))
        if deadline_s < NEVER_S:
            axis.axvline(1e3 * deadline_s, color=INK, linestyle=":", linewidth=1, label="deadline")
        axis.set(xlabel="latency (ms)", ylabel="share of answers", ylim=(0, 1.01))
        if axis.lines:  # without answers there may be nothing to draw, and nothing to scale
            axis.set_xscale("log")
            legend_below(axis)

    best = min(run.rows, key=lambda row: row["latency_p99_s"] or np.inf)
    p99_s = best["latency_p99_s"] or np.nan
    caption = f"Cumulative distribution of latency. 99th percentile of {best['router']}: {1e3 * p99_s:.0f} ms"
    caption += ", the lowest." if len(run.rows) > 1 else "."
    return draw("latency", "Latency", caption, paint, height=3.2 + legend_height([*run.routers, "deadline"]))


def _queues(run: Run) -> Picture:
    at_s = [frame.at_s for frame in run.frames]

    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        axis.plot(at_s, [sum(frame.waiting) for frame in run.frames], color=INK, label="gateway")
        for number, server in enumerate(run.frames[0].servers):
            held = [sum(frame.servers[number].at) for frame in run.frames]
            axis.plot(at_s, held, color=colour(number), label=server.name, linewidth=1.2)
        axis.set(xlabel="time (s)", ylabel="requests", xlim=(0, at_s[-1]))
        axis.set_ylim(bottom=0)
        mark_faults(axis, run.about)
        if len(run.frames[0].servers) < LEGEND_LIMIT:
            legend_below(axis)

    caption = "Requests over time: waiting at the gateway, and sent to each server but not yet back."
    return draw("queues", "Queues over time", caption, paint)


def _in_system(run: Run) -> Picture:
    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        for row, router in enumerate(run.routers):
            edges = np.linspace(0, run.seconds(row), 4 * BINS)
            came = np.searchsorted(run.arrays["arrival_s"], edges)
            under_way = came - np.searchsorted(run.arrays[f"{row}/answered_s"], edges)
            axis.plot(edges, under_way, label=wrapped(router, LETTERS), linewidth=1.2, **line(row))
        axis.set(xlabel="time (s)", ylabel="requests under way")
        axis.set_ylim(bottom=0)
        mark_faults(axis, run.about)
        legend_below(axis)

    caption = "Requests that have arrived and are not answered, over time"
    caption += ", including dropped ones." if any(row["dropped"] for row in run.rows) else "."
    return draw("queues", "Queues over time", caption, paint, height=3.2 + legend_height(run.routers))


def _servers(run: Run) -> Picture:
    at_s = [frame.at_s for frame in run.frames]

    def paint(axes: Any) -> None:
        for number, server in enumerate(run.frames[0].servers):
            states = [frame.servers[number] for frame in run.frames]
            axes[0, 0].plot(
                at_s,
                [100 * state.utilization for state in states],
                color=colour(number),
                lw=1.2,
                label=server.name,
            )
            axes[0, 1].plot(at_s, [state.power_w for state in states], color=colour(number), lw=1.2)
        axes[0, 0].set(xlabel="time (s)", ylabel="utilization (%)", ylim=(0, 104))
        axes[0, 1].set(xlabel="time (s)", ylabel="power (W)")
        for axis in axes.flat:
            axis.set_xlim(0, at_s[-1])
            mark_faults(axis, run.about, words=False)
        if len(run.frames[0].servers) < LEGEND_LIMIT:
            legend_below(axes[0, 0])

    caption = "Utilization and power of each server over time; a server that is down shows 0."
    return draw("servers", "Servers over time", caption, paint, columns=2)
