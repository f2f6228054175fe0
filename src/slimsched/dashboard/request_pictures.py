"""Pictures of a run that served requests."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.dashboard.front_picture import front_picture
from slimsched.dashboard.picture import INK, WIDTH_COLOURS, Picture, colour, draw
from slimsched.models.width import WIDTH_TUPLES, WIDTHS
from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.telemetry.run_folder import About, Run

BINS = 80
ANSWERS_PER_BIN = 10
LEGEND_LIMIT = 12


def request_pictures(run: Run) -> list[Picture]:
    """Draw all pictures, in reading order."""
    queues = _queues(run) if run.frames else _in_system(run)
    pictures = [_latency(run), front_picture(run), _widths(run), queues]
    return [*pictures, _servers(run)] if run.frames else pictures


def _latency(run: Run) -> Picture:
    deadline_s = run.about.config.get("load", {}).get("deadline_s", NEVER_S)

    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        for row, router in enumerate(_routers(run)):
            ordered = np.sort(run.arrays[f"{row}/latency_s"])
            if len(ordered):
                at = np.linspace(0, len(ordered) - 1, min(len(ordered), 400)).astype(int)
                share = (at + 1) / len(ordered)
                axis.plot(1e3 * np.maximum(ordered[at], 1e-4), share, color=colour(row), label=router)
        if deadline_s < NEVER_S:
            axis.axvline(1e3 * deadline_s, color=INK, linestyle=":", linewidth=1, label="deadline")
        axis.set(xscale="log", xlabel="latency (ms)", ylabel="share of answers", ylim=(0, 1.01))
        axis.legend(fontsize=8)

    best = min(run.rows, key=lambda row: row["latency_p99_s"] or np.inf)
    p99_s = best["latency_p99_s"] or np.nan
    caption = f"Cumulative distribution of latency. 99th percentile of {best['router']}: {1e3 * p99_s:.0f} ms"
    caption += ", the lowest." if len(run.rows) > 1 else "."
    return draw("latency", "Latency", caption, paint)


def _widths(run: Run) -> Picture:
    names = _routers(run)
    columns = 2 if len(names) == 4 else min(3, len(names))
    lines = -(-len(names) // columns)

    def paint(axes: Any) -> None:
        for row, router in enumerate(names):
            axis = axes.flat[row]
            seconds = _seconds(run, row)
            served = np.array(WIDTH_TUPLES)[run.arrays[f"{row}/tuples"]]  # (answers, 4)
            bins = int(np.clip(len(served) / ANSWERS_PER_BIN, 8, BINS))
            edges = np.linspace(0, seconds, bins + 1)
            slot = np.clip(np.digitize(run.arrays[f"{row}/answered_s"], edges) - 1, 0, bins - 1)
            counts = np.array([_sum_by_bin(slot, (served == width).sum(axis=1), bins) for width in WIDTHS])
            shares = counts / np.maximum(1, counts.sum(axis=0))
            labels = [f"{width:g}" for width in WIDTHS]
            drawn = np.hstack([shares, shares[:, -1:]])  # repeated, so that the last step is drawn too
            axis.stackplot(edges, drawn, labels=labels, colors=WIDTH_COLOURS, step="post", linewidth=0)
            axis.set(xlabel="time (s)", ylabel="share of segments", ylim=(0, 1), xlim=(0, seconds))
            axis.set_title(router, fontsize=9)
            _mark_faults(axis, run.about, words=row == 0)
        axes.flat[0].legend(loc="lower left", fontsize=7, ncols=4, frameon=True, labelcolor="black")
        for axis in list(axes.flat)[len(names) :]:
            axis.set_axis_off()

    caption = (
        "Share of segments at each width over time. Darker is wider; blank means no answers at that time."
    )
    height = 3.2 if lines == 1 else 2.4
    return draw("widths", "Widths over time", caption, paint, columns=columns, rows=lines, height=height)


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
        _mark_faults(axis, run.about)
        if len(run.frames[0].servers) < LEGEND_LIMIT:
            axis.legend(fontsize=8)

    caption = "Requests over time: waiting at the gateway, and sent to each server but not yet back."
    return draw("queues", "Queues over time", caption, paint)


def _in_system(run: Run) -> Picture:
    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        for row, router in enumerate(_routers(run)):
            edges = np.linspace(0, _seconds(run, row), 4 * BINS)
            came = np.searchsorted(run.arrays["arrival_s"], edges)
            under_way = came - np.searchsorted(run.arrays[f"{row}/answered_s"], edges)
            axis.plot(edges, under_way, color=colour(row), label=router, linewidth=1.2)
        axis.set(xlabel="time (s)", ylabel="requests under way")
        axis.set_ylim(bottom=0)
        _mark_faults(axis, run.about)
        axis.legend(fontsize=8)

    caption = "Requests that have arrived and are not answered, over time"
    caption += ", including dropped ones." if any(row["dropped"] for row in run.rows) else "."
    return draw("queues", "Queues over time", caption, paint)


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
            _mark_faults(axis, run.about, words=False)
        if len(run.frames[0].servers) < LEGEND_LIMIT:
            axes[0, 0].legend(fontsize=8)

    caption = "Utilization and power of each server over time; a server that is down shows 0."
    return draw("servers", "Servers over time", caption, paint, columns=2)


def _mark_faults(axis: Any, about: About, *, words: bool = True) -> None:
    """Draw a line at each fault, and say what happened if `words` is set."""
    verbs = {"kill": "killed", "restore": "restored", "slow": "slowed"}
    for fault in about.faults:
        axis.axvline(fault.at_s, color="#d62728", linestyle="--", linewidth=1, zorder=4)
        if words:
            axis.text(
                fault.at_s,
                0.98,
                f"{fault.server} {verbs[fault.kind]}",
                transform=axis.get_xaxis_transform(),
                rotation=90,
                va="top",
                ha="right",
                fontsize=7,
                color="#b3161b",
                bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1},
            )


def _sum_by_bin(slot: NDArray[np.int64], weights: NDArray[np.int64], bins: int) -> NDArray[np.float64]:
    return np.asarray(np.bincount(slot, weights=weights, minlength=bins), dtype=np.float64)


def _seconds(run: Run, row: int) -> float:
    """Return the length of the run, including its warm-up."""
    return float(run.rows[row]["seconds"] + run.about.config.get("load", {}).get("warmup_s", 0.0))


def _routers(run: Run) -> list[str]:
    return [str(row["router"]) for row in run.rows]
