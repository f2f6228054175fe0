"""The pictures of a report: requests, routers compared, choices over time, training jobs; as SVG and PNG."""

import re
from collections.abc import Callable, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.pareto import unbeaten
from slimsched.core.plots import COLOURS, pyplot
from slimsched.serving.domain.model import ModelOutline, ServedModel, outlines
from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.telemetry.live_view import ServerFrame, Stages
from slimsched.serving.telemetry.meter import Trace
from slimsched.serving.telemetry.run_folder import About, Run, trace_arrays

FAULTS = {
    "kill": "is killed",
    "hang": "hangs",
    "restore": "returns",
    "slow": "is slowed",
    "slow-link": "has its link slowed",
    "leave": "leaves",
}
"""What is said of a server, by the kind of its fault."""


def mark_faults(axis: Any, about: About, *, words: bool = True) -> None:
    """Draw a line at each fault, and say what happened if `words` is set."""
    for fault in about.faults:
        axis.axvline(fault.at_s, color="#d62728", linestyle="--", linewidth=1, zorder=4)
        if words:
            axis.text(
                fault.at_s,
                0.98,
                f"{fault.server} {FAULTS[fault.kind]}",
                transform=axis.get_xaxis_transform(),
                rotation=90,
                va="top",
                ha="right",
                fontsize=7,
                color="#b3161b",
                bbox={"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 1},
            )


# -- A picture of a report: as SVG in the page's colours, and as PNG for use elsewhere.

INK = "#010203"
"""Stands for the page's text colour; the SVG gets currentColor instead."""

LETTERS = 120
"""How many letters of a legend fit side by side below a picture."""

_STYLE = {
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "slim",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#8888884d",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}


def colour(number: int) -> str:
    """Return the colour of the row with this number."""
    return COLOURS[number % len(COLOURS)]


def line(number: int) -> dict[str, str]:
    """Return how the line of a row is drawn; rows beyond the last colour are dashed."""
    return {"color": colour(number), "linestyle": ("-", "--", ":")[number // len(COLOURS) % 3]}


def wrapped(name: str, letters: int) -> str:
    """Break a long name after colons, commas and spaces, so that it stays inside the picture."""
    lines = [""]
    for part in re.findall(r"[^:, ]+[:, ]*|[:, ]+", name):
        if lines[-1] and len(lines[-1] + part.rstrip()) > letters:
            lines.append("")
        lines[-1] += part
    return "\n".join(text.strip() for text in lines)


def legend_columns(names: Sequence[str]) -> int:
    """Return how many of the names fit side by side below a picture."""
    return max(1, min(len(names), LETTERS // (max(map(len, names), default=1) + 6)))


def legend_height(names: Sequence[str]) -> float:
    """Return the height of the legend below a picture, in inches."""
    return 0.1 + 0.17 * -(-len(names) // legend_columns(names))


def legend_below(axis: Any) -> None:
    """Name what is drawn below the picture, where the names cover nothing."""
    handles, names = axis.get_legend_handles_labels()
    if names:
        columns = legend_columns(names)
        axis.figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=8)


class Picture(Struct, frozen=True, kw_only=True):
    """A drawn picture; `caption` tells a reader who cannot see it what it shows."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes


def draw(
    name: str,
    title: str,
    caption: str,
    paint: Callable[[Any], None],
    *,
    columns: int = 1,
    rows: int = 1,
    height: float = 3.2,
) -> Picture:
    """Let `paint` fill a grid of axes (an array of rows × columns) and return it as SVG and PNG."""
    plt = pyplot()
    with plt.rc_context(_STYLE):
        size = (4.6 * max(columns, 2), height * rows)
        figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
        paint(axes)
        for axis in axes.flat:
            if not axis.get_xlabel():  # more places than panels
                axis.set_axis_off()
        text, image = StringIO(), BytesIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        figure.savefig(image, format="png", dpi=130, facecolor="white")
        plt.close(figure)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    return Picture(name=name, title=title, caption=caption, svg=_unique_ids(svg, name), png=image.getvalue())


def sheet(pictures: Sequence[Picture], title: str, path: Path) -> None:
    """Put pictures below each other under one title, in a file of the kind that its name says."""
    plt = pyplot()
    images = [plt.imread(BytesIO(picture.png)) for picture in pictures]
    heights = [9.2 * image.shape[0] / image.shape[1] + 0.3 for image in images]
    figure, axes = plt.subplots(
        len(images), figsize=(9.2, sum(heights) + 0.5), height_ratios=heights, layout="constrained"
    )
    figure.suptitle(title)
    for axis, picture, image in zip(axes, pictures, images, strict=True):
        axis.imshow(image)
        axis.set_title(picture.title)
        axis.set_axis_off()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _unique_ids(svg: str, name: str) -> str:
    """Prefix the ids in a drawing with its name, because several drawings share a page."""
    return svg.replace('id="', f'id="{name}-').replace("url(#", f"url(#{name}-").replace('"#', f'"#{name}-')


# -- The colours of choices, from narrow to wide: the same in pictures and on the dashboard's light page.

RAMPS = (
    ("#a9d3f5", "#4488d4", "#1a3a78"),
    ("#b5e3bf", "#3f9a63", "#124a2a"),
    ("#f8d7a6", "#d1842c", "#703307"),
    ("#dec9f5", "#8f61c9", "#432073"),
)
"""Narrow, middle and wide, as `--narrow0`, `--middle0`, … of `dashboard.css`; a ramp per family of models."""


def shades(number: int, ramp: int = 0) -> list[str]:
    """Return colours for a number of choices, from narrow to wide, mixed as the page mixes them."""
    narrow, middle, wide = RAMPS[ramp % len(RAMPS)]
    places = [n / (number - 1) for n in range(number)] if number > 1 else [0.67]
    return [_mix(narrow, middle, 2 * at) if at < 0.5 else _mix(middle, wide, 2 * at - 1) for at in places]


def _mix(one: str, other: str, share: float) -> str:
    """Mix two colours as browsers do for `color-mix(in srgb, …)`."""
    parts = ((int(one[at : at + 2], 16), int(other[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)


# -- The picture of the choices that were served over time: one panel per router, or per router and model.

BINS = 80
ANSWERS_PER_BIN = 10
LEGEND_COLUMNS = 4


def choices_picture(run: Run) -> Picture:
    """Draw how often each choice was served over time; a column per model where there are several."""
    models, routers = run.about.models, run.routers
    lines, columns = (len(routers), len(models)) if len(models) > 1 else _grid(len(routers))
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

    caption = "Share of segments at each choice over time"
    caption += ", by model. " if len(models) > 1 else ". "
    caption += "Darker is wider; blank means no answers at that time."
    height = 3.2 if lines == 1 else 2.4
    return draw("choices", "Choices over time", caption, paint, columns=columns, rows=lines, height=height)


def _grid(panels: int) -> tuple[int, int]:
    """Return in how many lines and columns to set so many panels."""
    columns = 2 if panels == 4 else min(3, panels)
    return -(-panels // columns), columns


def _panel(axis: Any, run: Run, row: int, number: int) -> None:
    """Stack the shares of one model's choices under one router."""
    model, seconds = run.about.models[number], run.seconds(row)
    names = Stages([model]).names
    its = run.arrays[f"{row}/model"] == number
    answered_s, plans = run.arrays[f"{row}/answered_s"][its].clip(0, seconds), run.arrays[f"{row}/plan"][its]
    edges = np.linspace(0, seconds, int(np.clip(len(plans) / ANSWERS_PER_BIN, 8, BINS)) + 1)
    ran = [model.names_of_plan(plan) for plan in range(len(model.plans))]
    runs_of = [np.array([choices.count(name) for choices in ran]) for name in names]  # by plan
    counts = np.array([np.histogram(answered_s, edges, weights=runs[plans])[0] for runs in runs_of])
    shares = counts / np.maximum(1, counts.sum(axis=0))
    drawn = np.hstack([shares, shares[:, -1:]])  # repeated, so that the last step is drawn too
    colours = shades(len(names), _ramp(run.about.models, number))
    axis.stackplot(edges, drawn, labels=names, colors=colours, step="post", linewidth=0)
    axis.set(xlabel="time (s)", ylabel="share of segments", ylim=(0, 1), xlim=(0, seconds))


def _ramp(models: tuple[ModelOutline, ...], number: int) -> int:
    """Return the first model that shares a choice's name with this one: such models share their colours."""
    own = {name for names in models[number].segments for name in names}
    for other, model in enumerate(models[:number]):
        if any(own & set(names) for names in model.segments):
            return _ramp(models, other)
    return number


# -- The picture that compares routers: accuracy against latency and energy, beside the fluid bound.

MARKERS = ("o", "s", "^", "D")
"""Routers beyond the last colour have another mark."""


def front_picture(run: Run) -> Picture:
    """Draw each router as a point, the fluid bound, and a line through the routers that no other beats."""
    bound = 100 * run.rows[0]["bound_accuracy"]

    def paint(axes: Any) -> None:
        _paint_routers(axes[0, 0], run, "latency_mean_s", "mean latency (ms)")
        _bound_by_latency(axes[0, 0], bound)
        _paint_routers(axes[0, 1], run, "energy_j_per_request", "energy above idle (mJ per arrived request)")
        _bound_by_energy(axes[0, 1], run, bound)
        legend_below(axes[0, 0])

    best = max(run.rows, key=lambda row: row["bound_share"])
    several = ", the most. The thin line joins the routers that no other beats on both axes"
    caption = (
        f"Accuracy over all arrived requests against latency and energy. No router can exceed {bound:.2f} %, "
        f"or less with less energy. {best['router']} reaches {100 * best['bound_share']:.1f} % of it"
        f"{several * (len(run.rows) > 1)}."
    )
    title = "Accuracy, latency and energy beside the fluid bound"
    return draw("front", title, caption, paint, columns=2, height=3.2 + legend_height(run.routers))


def _paint_routers(axis: Any, run: Run, key: str, label: str) -> None:
    """Draw a point for each router, by a figure in seconds or joules, and a line through the best."""
    points = {}
    for number, row in enumerate(run.rows):
        if row[key] is not None and row["accuracy"] is not None:
            answered = row["completed"] / max(1, row["arrived"])
            figure = 1e3 * row[key] * (answered if key.startswith("energy") else 1.0)
            points[number] = (figure, 100 * row["accuracy"] * answered)
    front = unbeaten(points.values(), lambda one: one)
    if len(front) > 1:
        axis.plot(*zip(*front, strict=True), color=INK, linewidth=0.8, alpha=0.5, zorder=2)
    for number, point in points.items():
        mark = MARKERS[number // len(COLOURS) % len(MARKERS)]
        name = wrapped(run.rows[number]["router"], LETTERS)
        axis.scatter(*point, color=colour(number), marker=mark, s=42, zorder=3, label=name)
    axis.set(xlabel=label, ylabel="arrived requests answered correctly (%)")
    axis.margins(x=0.25, y=0.15)


def _bound_by_latency(axis: Any, bound: float) -> None:
    axis.axhline(bound, color=INK, linestyle="--", linewidth=1)
    low, high = axis.get_ylim()
    axis.set_ylim(low, max(high, bound + 0.12 * (bound - low)))  # room for the label
    place = {"xycoords": ("axes fraction", "data"), "xytext": (0, 3), "textcoords": "offset points"}
    axis.annotate(f"fluid bound {bound:.2f} %", (0.02, bound), fontsize=8, **place)


def _bound_by_energy(axis: Any, run: Run, bound: float) -> None:
    """Draw the bound as a curve over the energy budget; without a curve, draw only its highest value."""
    energy_j, accuracy = run.arrays.get("bound/energy_j"), run.arrays.get("bound/accuracy")
    if energy_j is None or accuracy is None:
        _bound_by_latency(axis, bound)
        return
    low, (left, right) = axis.get_ylim()[0], axis.get_xlim()
    right = max(right, 1.05e3 * float(energy_j[-1]))
    axis.plot([*1e3 * energy_j, right], [*100 * accuracy, 100 * accuracy[-1]], color=INK, ls="--", lw=1)
    high = max(axis.get_ylim()[1], bound + 0.12 * (bound - low))  # room for the label
    axis.set(xlim=(left, right), ylim=(low, high))
    place = {"xytext": (-2, 4), "textcoords": "offset points", "ha": "right"}
    axis.annotate("fluid bound", (right, 100 * accuracy[-1]), fontsize=8, **place)


# -- Pictures of a run that placed training jobs.


def job_pictures(run: Run) -> list[Picture]:
    """Draw all pictures, in reading order."""
    return [_completion(run), _makespan(run), _tiers(run), _occupancy(run)]


def _completion(run: Run) -> Picture:
    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        for row, policy in enumerate(_policies(run)):
            _paint_distribution(axis, np.maximum(run.arrays[f"{row}/jct_s"], 1.0), row, policy)
        axis.set(xscale="log", xlabel="job completion time (s)", ylabel="share of jobs", ylim=(0, 1.01))
        legend_below(axis)

    best = min(run.rows, key=lambda row: float(row["jct_mean_s"]))
    caption = f"Cumulative distribution of job completion time. Mean of {best['policy']}: "
    caption += f"{best['jct_mean_s'] / 3600:.2f} h" + (", the lowest." if len(run.rows) > 1 else ".")
    height = 3.2 + legend_height(_policies(run))
    return draw("completion", "Job completion time", caption, paint, height=height)


def _paint_distribution(axis: Any, values: NDArray[np.float64], row: int, name: str) -> None:
    """Draw the cumulative distribution of a row's values, if it has any."""
    if len(values):
        at = np.linspace(0, len(values) - 1, min(len(values), 400)).astype(int)
        axis.plot(np.sort(values)[at], (at + 1) / len(values), label=wrapped(name, LETTERS), **line(row))


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
        handles, labels = axes[0, 0].get_legend_handles_labels()
        axes[0, 0].figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)

    caption = "Communication not hidden by computing, and GPU time, by the network tier that gangs span."
    return draw("tiers", "Network tiers", caption, paint, columns=2, height=_bar_height(names))


def _occupancy(run: Run) -> Picture:
    names = _policies(run)
    lines, columns = _grid(len(names))

    style = {"cmap": "viridis", "interpolation": "nearest"}

    def paint(axes: Any) -> None:
        image = None
        for row, policy in enumerate(names):
            axis, held = axes.flat[row], run.arrays[f"{row}/held"]
            end_h = run.arrays[f"{row}/edges_s"][-1] / 3600
            extent = (0.0, end_h, len(held) - 0.5, -0.5)
            image = axis.imshow(held, aspect="auto", extent=extent, vmin=0.0, vmax=1.0, **style)
            axis.yaxis.get_major_locator().set_params(integer=True)
            axis.hlines(np.arange(0.5, len(held) - 1), 0.0, end_h, color="white", linewidth=0.8)
            axis.set(xlabel="time (h)", ylabel="rack")
            axis.set_title(wrapped(policy, 48), fontsize=9)
            axis.grid(False)
        axes.flat[0].figure.colorbar(image, ax=axes, shrink=0.8, label="share of GPUs held")

    caption = "Share of each rack's GPUs held by jobs over time; bright is full."
    return draw("occupancy", "Cluster occupancy", caption, paint, columns=columns, rows=lines, height=2.6)


def _policies(run: Run) -> list[str]:
    return [str(row["policy"]) for row in run.rows]


def _bar_names(run: Run) -> list[str]:
    return [wrapped(policy, 26) for policy in _policies(run)]


def _bar_height(names: list[str]) -> float:
    return 1.4 + sum(0.16 + 0.13 * len(name.split("\n")) for name in names)


# -- Pictures of a run that served requests.

LEGEND_LIMIT = 12


def request_pictures(run: Run) -> list[Picture]:
    """Draw all pictures, in reading order."""
    queues = _queues(run) if run.frames else _in_system(run)
    pictures = [_latency(run), front_picture(run), choices_picture(run), queues]
    return [*pictures, _servers(run)] if run.frames else pictures


def plot_runs(traces: Sequence[Trace], models: Sequence[ServedModel], title: str, path: Path) -> None:
    """Draw latency, accuracy against latency and energy, and the choices of each run into one picture."""
    run = Run(
        about=About(kind="requests", title=title, seed=0, config={}, models=outlines(models, plans=True)),
        rows=[msgspec.json.decode(msgspec.json.encode(trace.summary)) for trace in traces],
        arrays=trace_arrays(traces, np.empty(0)),
        frames=[],
    )
    sheet([_latency(run), front_picture(run), choices_picture(run)], title, path)


def _latency(run: Run) -> Picture:
    best = min(run.rows, key=lambda row: row["latency_p99_s"] or np.inf)
    p99_s = best["latency_p99_s"] or np.nan
    caption = f"Cumulative distribution of latency. 99th percentile of {best['router']}: {1e3 * p99_s:.0f} ms"
    caption += ", the lowest." if len(run.rows) > 1 else "."
    height = 3.2 + legend_height([*run.routers, "deadline"])
    deadline_s = run.about.config.get("load", {}).get("deadline_s", NEVER_S)

    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        for row, router in enumerate(run.routers):
            _paint_distribution(axis, 1e3 * np.maximum(run.arrays[f"{row}/latency_s"], 1e-4), row, router)
        if deadline_s < NEVER_S:
            axis.axvline(1e3 * deadline_s, color=INK, linestyle=":", linewidth=1, label="deadline")
        axis.set(xlabel="latency (ms)", ylabel="share of answers", ylim=(0, 1.01))
        if axis.lines:  # without answers there may be nothing to draw, and nothing to scale
            axis.set_xscale("log")
            legend_below(axis)

    return draw("latency", "Latency", caption, paint, height=height)


def _queues(run: Run) -> Picture:
    def paint(axes: Any) -> None:
        axis = axes[0, 0]
        at_s = [frame.at_s for frame in run.frames]
        axis.plot(at_s, [sum(frame.waiting) for frame in run.frames], color=INK, label="gateway")
        _paint_servers(axis, run, "requests", lambda server: sum(server.at))
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


def _paint_servers(axis: Any, run: Run, label: str, figure: Callable[[ServerFrame], float]) -> None:
    """Draw a figure of every server over time."""
    at_s = [frame.at_s for frame in run.frames]
    for number, server in enumerate(run.frames[0].servers):
        values = [figure(frame.servers[number]) for frame in run.frames]
        axis.plot(at_s, values, color=colour(number), label=server.name, linewidth=1.2)
    axis.set(xlabel="time (s)", ylabel=label, xlim=(0, at_s[-1]))
    axis.set_ylim(bottom=0)


def _servers(run: Run) -> Picture:
    def paint(axes: Any) -> None:
        _paint_servers(axes[0, 0], run, "utilization (%)", lambda server: 100 * server.utilization)
        _paint_servers(axes[0, 1], run, "power (W)", lambda server: server.power_w)
        for axis in axes.flat:
            mark_faults(axis, run.about, words=False)
        if len(run.frames[0].servers) < LEGEND_LIMIT:
            legend_below(axes[0, 0])

    caption = "Utilization and power of each server over time; a server that is down shows 0."
    return draw("servers", "Servers over time", caption, paint, columns=2)
