"""Pictures of a run that placed training jobs."""

from typing import Any

import numpy as np

from slimsched.dashboard.picture import (
    COLOURS,
    INK,
    LETTERS,
    Picture,
    draw,
    legend_below,
    legend_height,
    line,
    wrapped,
)
from slimsched.serving.telemetry.run_folder import Run


def job_pictures(run: Run) -> list[Picture]:
    """Draw all pictures, in reading order."""
    return [_completion(run), _makespan(run), _tiers(run), _occupancy(run)]


def _completion(run: Run) -> Picture:
    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        for row, policy in enumerate(_policies(run)):
            jct_s = run.arrays[f"{row}/jct_s"]
            if len(jct_s):
                at = np.linspace(0, len(jct_s) - 1, min(len(jct_s), 400)).astype(int)
                share = (at + 1) / len(jct_s)
                axis.plot(np.maximum(jct_s[at], 1.0), share, label=wrapped(policy, LETTERS), **line(row))
        axis.set(xscale="log", xlabel="job completion time (s)", ylabel="share of jobs", ylim=(0, 1.01))
        legend_below(axis)

    best = min(run.rows, key=lambda row: float(row["jct_mean_s"]))
    caption = f"Cumulative distribution of job completion time. Mean of {best['policy']}: "
    caption += f"{best['jct_mean_s'] / 3600:.2f} h" + (", the lowest." if len(run.rows) > 1 else ".")
    height = 3.2 + legend_height(_policies(run))
    return draw("completion", "Job completion time", caption, paint, height=height)


def _makespan(run: Run) -> Picture:
    names = _bar_names(run)

    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        axis.barh(names, [row["makespan_s"] / 3600 for row in run.rows], color=COLOURS[0])
        bound_h = max(row["makespan_bound_s"] for row in run.rows) / 3600
        axis.axvline(bound_h, color=INK, linestyle="--", linewidth=1, label="lower bound")
        axis.set(xlabel="makespan (h)")
        axis.invert_yaxis()
        legend_below(axis)

    best = min(run.rows, key=lambda row: float(row["makespan_s"]))
    caption = f"Time until the last job is done, beside the lower bound. {best['policy']} takes "
    caption += f"{best['makespan_s'] / 3600:.2f} h" + (", the least." if len(run.rows) > 1 else ".")
    return draw("makespan", "Makespan", caption, paint, height=_bar_height(names))


def _tiers(run: Run) -> Picture:
    names = _bar_names(run)

    def paint(axes: Any) -> None:
        for axis, key, label in (
            (axes[0, 0], "comm_by_tier", "communication / computing"),
            (axes[0, 1], "gpu_share_by_tier", "share of GPU time"),
        ):
            left = np.zeros(len(names))
            for number, tier in enumerate(run.rows[0][key]):
                share = np.array([row[key][tier] for row in run.rows])
                axis.barh(names, share, left=left, label=tier, color=COLOURS[number])
                left += share
            axis.set(xlabel=label)
            axis.invert_yaxis()
        figure = axes[0, 0].figure
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)

    caption = "Communication not hidden by computing, and GPU time, by the network tier that gangs span."
    return draw("tiers", "Network tiers", caption, paint, columns=2, height=_bar_height(names))


def _occupancy(run: Run) -> Picture:
    names = _policies(run)
    columns = 2 if len(names) == 4 else min(3, len(names))
    lines = -(-len(names) // columns)

    def paint(axes: Any) -> None:
        image = None
        for row, policy in enumerate(names):
            axis, held = axes.flat[row], run.arrays[f"{row}/held"]
            end_h = run.arrays[f"{row}/edges_s"][-1] / 3600
            extent = (0.0, end_h, len(held) - 0.5, -0.5)
            image = axis.imshow(
                held,
                aspect="auto",
                extent=extent,
                vmin=0.0,
                vmax=1.0,
                cmap="viridis",
                interpolation="nearest",
            )
            axis.yaxis.get_major_locator().set_params(integer=True)
            axis.hlines(np.arange(0.5, len(held) - 1), 0.0, end_h, color="white", linewidth=0.8)
            axis.set(xlabel="time (h)", ylabel="rack")
            axis.set_title(wrapped(policy, 48), fontsize=9)
            axis.grid(False)
        for axis in list(axes.flat)[len(names) :]:
            axis.set_axis_off()
        axes.flat[0].figure.colorbar(image, ax=axes, shrink=0.8, label="share of GPUs held")

    caption = "Share of each rack's GPUs held by jobs over time; bright is full."
    return draw("occupancy", "Cluster occupancy", caption, paint, columns=columns, rows=lines, height=2.6)


def _policies(run: Run) -> list[str]:
    return [str(row["policy"]) for row in run.rows]


def _bar_names(run: Run) -> list[str]:
    return [wrapped(policy, 26) for policy in _policies(run)]


def _bar_height(names: list[str]) -> float:
    return 1.4 + sum(0.16 + 0.13 * len(name.split("\n")) for name in names)
