"""A picture of a report: as SVG in the page's colours, and as PNG for use elsewhere."""

from collections.abc import Callable
from io import BytesIO, StringIO
from typing import Any

from msgspec import Struct

from slimsched.kernel.errors import SlimError

INK = "#010203"
"""Stands for the page's text colour; the SVG gets currentColor instead."""

COLOURS = ("#4c78c8", "#e07b39", "#3f9c6b", "#cf4b52", "#8c6bc0", "#9a7350", "#d678b4", "#7f8c8d", "#b8a02e")
RAMPS = (
    ("#9fcdf0", "#4c8bd0", "#1b3a70"),
    ("#a9dcb5", "#3f9a63", "#124a2a"),
    ("#f5cf98", "#d1842c", "#703307"),
    ("#d8c2f0", "#8f61c9", "#432073"),
)
"""The colours of choices, from narrow to wide; unrelated models have ramps of their own."""

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


def shades(number: int, ramp: int = 0) -> list[str]:
    """Return colours for a number of choices, from narrow to wide."""
    stops = [[int(stop[at : at + 2], 16) for at in (1, 3, 5)] for stop in RAMPS[ramp % len(RAMPS)]]
    colours = []
    for position in range(number):
        way = 2 * position / (number - 1) if number > 1 else 1.0
        low = min(int(way), 1)
        mixed = [a + (b - a) * (way - low) for a, b in zip(stops[low], stops[low + 1], strict=True)]
        colours.append("#" + "".join(f"{round(part):02x}" for part in mixed))
    return colours


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
        size = (4.6 * columns if columns > 1 else 7.2, height * rows)
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
