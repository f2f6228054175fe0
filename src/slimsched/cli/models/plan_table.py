"""A model's plans as rows: what each computes, weighs and hands over, and what it is worth."""

from typing import TYPE_CHECKING, Any

from rich.table import Table

from slimsched.models.quality import QualityTable
from slimsched.models.spec import ModelFigures, ModelSpec, Path

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_ROWS = 16
"""Longer tables show the plans of one choice throughout, the narrowest and the widest."""


def plan_rows(
    spec: ModelSpec,
    figures: ModelFigures | None,
    handed_bytes: "Mapping[Path, int] | None" = None,
    quality: QualityTable | None = None,
) -> list[dict[str, Any]]:
    """Facts of every plan, for one example."""
    rows = []
    for plan in spec.plans:
        row: dict[str, Any] = {"plan": spec.text(plan)}
        if figures is not None:
            row["macs"] = figures.plan_macs(spec, plan)
            row["weights"] = figures.plan_weights(plan)
            row["handed_over"] = sum(figures.output[place] for place in enumerate(plan[:-1]))
        if handed_bytes:
            row["handed_over_bytes"] = sum(handed_bytes[plan[:length]] for length in range(1, len(plan)))
        if quality is not None:
            row["quality"] = quality.accuracy(plan)
        rows.append(row)
    return rows


def plan_table(
    spec: ModelSpec,
    figures: ModelFigures | None,
    handed_bytes: "Mapping[Path, int] | None" = None,
    quality: QualityTable | None = None,
) -> Table:
    """The plans for people, at most 80 columns wide."""
    rows = plan_rows(spec, figures, handed_bytes, quality)
    shown = rows if len(rows) <= MOST_ROWS else [row for row in rows if row["plan"] in _main_plans(spec)]
    title = f"{spec.name}, version {spec.version}: {len(rows)} plans"
    if len(shown) < len(rows):
        title += f", {len(shown)} of them here (--json lists all)"
    table = Table(title=title, title_justify="left", width=None)
    table.add_column("plan", overflow="fold")
    cells: list[tuple[str, Any]] = []
    if figures is not None:
        cells += [
            ("MACs", lambda row: in_units(row["macs"])),
            ("weights", lambda row: in_units(row["weights"])),
        ]
        if handed_bytes:
            cells.append(("bytes handed over", lambda row: in_units(row["handed_over_bytes"])))
        else:
            cells.append(("numbers handed over", lambda row: in_units(row["handed_over"])))
    if quality is not None:
        cells.append(("quality %", lambda row: f"{100 * row['quality']:.2f}"))
    for name, _ in cells:
        table.add_column(name, justify="right")
    for row in shown:
        table.add_row(row["plan"], *(write(row) for _, write in cells))
    return table


def in_units(value: int) -> str:
    """Write a count with three or four digits: 5,376 or 25.6 M."""
    for least, unit, size in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e4, "k", 1e3)):
        if value >= least:
            return f"{value / size:,.1f} {unit}"
    return f"{value:,}"


def _main_plans(spec: ModelSpec) -> set[str]:
    names = {spec.text(plan): plan for plan in spec.plans}
    uniform = {text for text in names if len(set(text.split(","))) == 1}
    return uniform | {spec.text(spec.narrowest), spec.text(spec.widest)}
