"""The map of gains: a panel for each figure, a row for each condition, a column for each rival."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import numpy as np
from gains_map import CLAIMS, FIGURES, RIVALS, Cell, cells, read

Gains = dict[tuple[Cell, str, str], list[float]]
"""Cell, rival and figure → what dally saves of the rival's figure, seed by seed."""

NOTHING = 1e-3
"""A rival's figure below this leaves nothing to save."""


def gains(lines: Path) -> Gains:
    """Pair dally with every rival on the same jobs."""
    rows = {tuple(row["key"]): row for row in read(lines)}
    found: Gains = {}
    for (*cell, seed, policy), row in rows.items():
        ours = rows.get((*cell, seed, "dally"))
        if policy != "dally" and ours is not None:
            for figure in FIGURES:
                gain = 1.0 - max(0.0, ours[figure]) / row[figure] if row[figure] > NOTHING else 0.0
                found.setdefault((Cell(*cell), policy, figure), []).append(gain)
    return found


def draw(lines: Path, picture: Path) -> None:
    """Draw all conditions; a frame marks where the paper's figure is reached."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = gains(lines)
    shown = [cell for cell in cells() if all((cell, rival, "jct_mean_s") in found for rival in RIVALS)]
    figure, axes = pyplot.subplots(
        1, len(FIGURES), figsize=(17, 1.5 + 0.17 * len(shown)), layout="constrained"
    )
    image = None
    for axis, (name, title) in zip(axes, FIGURES.items(), strict=True):
        share = np.array([[fmean(found[cell, rival, name]) for rival in RIVALS] for cell in shown])
        image = axis.imshow(
            100 * share, aspect="auto", vmin=-100, vmax=100, cmap="RdYlGn", interpolation="nearest"
        )
        axis.set_title(f"{title}: framed from {100 * CLAIMS[name]:.0f} %", fontsize=9)
        axis.set_xticks(range(len(RIVALS)), RIVALS, rotation=30, ha="right", fontsize=7)
        axis.set_yticks(range(len(shown)) if axis is axes[0] else [], fontsize=5.5,
                        labels=[_label(cell) for cell in shown] if axis is axes[0] else [])  # fmt: skip
        for row, column in np.argwhere(share >= CLAIMS[name]):
            axis.add_patch(
                pyplot.Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=1)
            )
    figure.colorbar(image, ax=axes, label="% of the rival's figure that dally saves (green)")
    figure.savefig(picture, dpi=110)
    print(table(found))


def table(found: Mapping[tuple[Cell, str, str], list[float]]) -> str:
    """Where each of the paper's figures is reached, and the most that is gained, by rival."""
    lines = ["| rival | figure | conditions | reached in | most | there |", "|---|---|---|---|---|---|"]
    for rival in RIVALS:
        for name, title in FIGURES.items():
            means = {
                cell: fmean(values)
                for (cell, who, what), values in found.items()
                if (who, what) == (rival, name)
            }
            best = max(means, key=lambda cell: means[cell])
            reached = sum(gain >= CLAIMS[name] for gain in means.values())
            lines.append(
                f"| {rival} | {title} −{100 * CLAIMS[name]:.0f} % | {len(means)} | {reached} | "
                f"−{100 * means[best]:.0f} % | {_label(best)} |"
            )
    return "\n".join(lines)


def _label(cell: Cell) -> str:
    return f"{cell.network}, {cell.arrivals}, {100 * cell.gangs:.0f} % gangs, {cell.models}"
