"""The tables and the plot of what was measured."""

from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from slimsched.core.plots import COLOURS, pyplot

STYLES = {1.0: "-", 0.5: "--", 0.25: ":"}
CHOSEN = {"free": ("free width", "-"), "sure": ("stopping when sure", "--")}
"""Our server where it chooses widths by itself: what it is called, and how its line looks."""
Pieces = dict[str, Any]


def write_report(folder: Path, plot: Path | None) -> None:
    """Print the tables as Markdown and draw the plot."""
    pieces: Pieces = {path.stem: msgspec.json.decode(path.read_bytes()) for path in folder.glob("*.json")}
    print(_fixed(pieces))
    print(_front(pieces))
    print(_verdicts(pieces))
    where = plot or folder / "peers.png"
    _plot(pieces, where)
    print(f"\nwritten: {where}")


def _fixed(pieces: Pieces) -> str:
    """Return the table of throughput and latency at fixed widths."""
    lines = [
        "| width | | images/s at saturation | of the offline loop | p50, p99 at half load |",
        "|---|---|---|---|---|",
    ]
    for width in STYLES:
        offline = [rate for name in _names(pieces) for rate in _rounds(pieces, f"{name}-{width:g}-offline")]
        if not offline:
            continue
        lines.append(f"| {width:g} | offline loop | {median(offline):.0f} | | |")
        for name in _names(pieces):
            label = f"{name}-{width:g}"
            saturated, half = _rounds(pieces, f"{label}-saturated"), _rounds(pieces, f"{label}-half")
            shares = [
                pieces[own] / pieces[loop]
                for own in sorted(pieces)
                if own.startswith(f"{label}-saturated.")
                and (loop := own.replace("saturated", "offline")) in pieces
            ]
            if not shares or not half:
                continue
            p50, p99 = (median(1e3 * (one["latency"][p] or inf) for one in half) for p in ("p50_s", "p99_s"))
            each = ", ".join(f"{share:.0%}" for share in shares)
            share = f"{median(shares):.0%} ({each})"
            lines.append(f"| | {name} | {median(saturated):.0f} | {share} | {p50:.1f}, {p99:.1f} ms |")
    return "\n".join(lines) + "\n"


def _front(pieces: Pieces) -> str:
    """Return the table of correct answers in time by load, with all answers in time in brackets."""
    loads, curves = _loads(pieces), _curves(pieces)
    late = [one["dispatch_error"]["p99_s"] for name, one in pieces.items() if "-load-" in name]
    lines = ["| | " + " | ".join(f"{load:.0%}" for load in loads) + " |", "|---" * (1 + len(loads)) + "|"]
    for (name, width), curve in curves.items():
        cells = [f"{curve[x][0]:.0f} ({curve[x][1]:.0f})" if x in curve else "" for x in loads]
        lines.append(f"| {name} {width} | " + " | ".join(cells) + " |")
    if late:
        lines.append(
            f"\nRequests left late by at most {1e3 * max(late):.1f} ms (99th percentile of the worst run)."
        )
    return "\n".join(lines) + "\n"


def _verdicts(pieces: Pieces) -> str:
    """Return one line per load and way to choose that compares ours with the best peer."""
    lines = []
    for chosen, load in [(one, load) for one in CHOSEN for load in _loads(pieces)]:
        ours = _curves(pieces).get(("ours", chosen), {})
        rivals = {
            f"{name} {width}": curve[load][0]
            for (name, width), curve in _curves(pieces).items()
            if name != "ours" and load in curve
        }
        if load not in ours or not rivals:
            continue
        own, best = ours[load][0], max(rivals, key=lambda one: rivals[one])
        full = max((value for name, value in rivals.items() if name.endswith(" 1")), default=float("nan"))
        lines.append(
            f"- {load:.0%}: ours {chosen} {own:.0f}, best peer {best} {rivals[best]:.0f} "
            f"({own / rivals[best]:.2f} ×), best at full width {full:.0f} ({own / full:.2f} ×)"
        )
    return "\n".join(lines)


def _plot(pieces: Pieces, path: Path) -> None:
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(8, 5.2), layout="constrained")
    names = _names(pieces)
    for (name, width), curve in _curves(pieces).items():
        loads = sorted(curve)
        free = width in CHOSEN
        line, style = CHOSEN[width] if free else (f"width {width}", STYLES[float(width)])
        axes.plot(
            [100 * load for load in loads],
            [curve[load][0] for load in loads],
            color="black" if free else COLOURS[names.index(name) % len(COLOURS)],
            linestyle=style,
            linewidth=2.5 if free else 1.3,
            marker="o",
            markersize=3,
            label=f"{name}, {line}",
        )
    axes.set(
        xlabel="load (% of full-width capacity)",
        ylabel="correct answers within the deadline per second",
        title="The same model behind each server, two cores",
        ylim=(0, None),
    )
    axes.legend(fontsize=7, ncols=2)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _rounds(pieces: Pieces, name: str) -> list[Any]:
    """Return the results of that name, round by round."""
    return [pieces[one] for one in sorted(pieces) if one.rpartition(".")[0] == name]


def _curves(pieces: Pieces) -> dict[tuple[str, str], dict[float, tuple[float, float]]]:
    """Return correct answers in time and all answers in time, by contender, width and load.

    The figures are medians over the rounds.
    """
    curves: dict[tuple[str, str], dict[float, tuple[float, float]]] = {}
    for name in sorted({one.rpartition(".")[0] for one in pieces if "-load-" in one}):
        label, _, load = name.partition("-load-")
        contender, _, width = label.rpartition("-")
        rounds = _rounds(pieces, name)
        curves.setdefault((contender, width), {})[float(load)] = (
            median(one["correct_in_time_per_s"] for one in rounds),
            median(one["goodput_per_s"] for one in rounds),
        )
    return dict(sorted(curves.items(), key=lambda one: (one[0][0] != "ours", one[0][1] != "1", one[0])))


def _loads(pieces: Pieces) -> list[float]:
    return sorted({load for curve in _curves(pieces).values() for load in curve})


def _names(pieces: Pieces) -> list[str]:
    return sorted({name.split("-")[0] for name in pieces} - {"offline"}, key=lambda one: (one != "ours", one))
