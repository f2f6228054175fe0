"""A picture of a report: as SVG in the page's colours, and as PNG for use elsewhere."""

import re
from collections.abc import Callable, Sequence
from io import BytesIO, StringIO
from typing import Any

from msgspec import Struct

from slimsched.core.config import SlimError

INK = "#010203"
"""Stands for the page's text colour; the SVG gets currentColor instead."""

COLOURS = ("#4c78c8", "#e07b39", "#3f9c6b", "#cf4b52", "#8c6bc0", "#9a7350", "#d678b4", "#7f8c8d", "#b8a02e")
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
    try:
        import matplotlib
    except ImportError:
        raise SlimError(
            "reports need matplotlib; install it with: pip install 'slim-scheduler[plot]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type,unused-ignore]
        size = (4.6 * max(columns, 2), height * rows)
        figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
        paint(axes)
        text, image = StringIO(), BytesIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        figure.savefig(image, format="png", dpi=130, facecolor="white")
        pyplot.close(figure)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    return Picture(name=name, title=title, caption=caption, svg=_unique_ids(svg, name), png=image.getvalue())


def _unique_ids(svg: str, name: str) -> str:
    """Prefix the ids in a drawing with its name, because several drawings share a page."""
    return svg.replace('id="', f'id="{name}-').replace("url(#", f"url(#{name}-").replace('"#', f'"#{name}-')
