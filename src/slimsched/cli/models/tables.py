"""What `slim model` prints for people: tables of plans, and a model's facts."""

from typing import TYPE_CHECKING, Any

from rich.table import Table

from slimsched.models.spec import ModelFigures, ModelSpec, Path

if TYPE_CHECKING:
    from collections.abc import Mapping


# -- A model's plans as rows: what each computes, weighs and hands over, and what it is worth.

MOST_ROWS = 16
"""Longer tables show the plans of one choice throughout, the narrowest and the widest."""


def plan_rows(
    spec: ModelSpec,
    figures: ModelFigures | None,
    handed_bytes: "Mapping[Path, int] | None" = None,
    accuracy: "Mapping[Path, float] | None" = None,
) -> list[dict[str, Any]]:
    """Facts of every plan, or of those whose accuracy is given, for one example."""
    rows = []
    for plan in spec.plans if accuracy is None else accuracy:
        row: dict[str, Any] = {"plan": spec.text(plan)}
        if figures is not None:
            row["macs"] = figures.plan_macs(spec, plan)
            row["weights"] = figures.plan_weights(plan)
            row["handed_over"] = sum(figures.output[place] for place in enumerate(plan[:-1]))
        if handed_bytes:
            row["handed_over_bytes"] = sum(handed_bytes[plan[:length]] for length in range(1, len(plan)))
        if accuracy is not None:
            row["quality"] = accuracy[plan]
        rows.append(row)
    return rows


COLUMNS = {
    "macs": "MACs",
    "weights": "weights",
    "handed_over_bytes": "bytes handed over",
    "handed_over": "numbers handed over",
    "quality": "quality %",
    "paper": "paper %",
}
"""The columns of the table of plans, by the names of their rows."""


def plan_table(spec: ModelSpec, rows: list[dict[str, Any]]) -> Table:
    """The plans for people, at most 80 columns wide."""
    shown = rows if len(rows) <= MOST_ROWS else [row for row in rows if row["plan"] in _main_plans(spec)]
    title = f"{spec.name}, version {spec.version}: {len(rows)} plans"
    if len(shown) < len(rows):
        title += f", {len(shown)} of them here (--json lists all)"
    table = Table(title=title, title_justify="left", width=None)
    table.add_column("plan", overflow="fold")
    left_out = "handed_over" if "handed_over_bytes" in rows[0] else ""
    columns = [name for name in COLUMNS if name != left_out and any(name in row for row in shown)]
    for name in columns:
        table.add_column(COLUMNS[name], justify="right")
    for row in shown:
        table.add_row(row["plan"], *(_cell(name, row.get(name)) for name in columns))
    return table


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.2f}" if name in ("quality", "paper") else in_units(int(value))


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


def facts_table(facts: "Mapping[str, Any]", without: tuple[str, ...] = ()) -> Table:
    """Facts about one thing for people: a row each, lists and tables of numbers on lines of their own."""
    table = Table(show_header=False, title=facts["name"], title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in facts.items():
        if key in ("name", *without) or value in (None, "", []):
            continue
        lines = value if isinstance(value, list) else [value]
        if isinstance(value, bool):
            lines = ["yes" if value else "no"]
        elif isinstance(value, dict):
            lines = [f"{name}: {number:,}" for name, number in value.items()]
        elif lines and isinstance(lines[0], float | int):
            lines = [", ".join(map(str, lines))]
        table.add_row(key.replace("_", " "), "\n".join(map(str, lines)))
    return table
