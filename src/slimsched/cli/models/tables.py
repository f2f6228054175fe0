"""What `slim model` prints for people: tables of accuracy, of the Pareto set, and a model's facts."""

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict
from rich.console import Console
from rich.table import Table

from slimsched.models.package import network_figures, network_spec
from slimsched.models.quality import QualityTable
from slimsched.models.shipped import PUBLISHED_PERCENT
from slimsched.models.spec import ModelFigures, ModelSpec, Path, uniform_plans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimsched.models.network import ModelCard
    from slimsched.models.package import Shape
    from slimsched.models.pareto import ParetoPoint

# -- A model's plans as rows: what each computes, weighs and hands over, and what it is worth.

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


def read_plans(texts: list[str] | None, spec: ModelSpec) -> list[Path]:
    """Read the plans to score: the paper's eight if none are named, every plan for 'all'."""
    if texts == ["all"]:
        return list(spec.plans)
    return list(dict.fromkeys(spec.path(text) for text in texts or PUBLISHED_PERCENT))


def accuracy_table(
    percent: dict[Path, float],
    spec: ModelSpec,
    figures: ModelFigures,
    *,
    scored_on: str,
    published: "Mapping[str, float]",
) -> None:
    """Print each plan's accuracy beside its arithmetic and, where there are any, published figures."""
    table = Table(title=f"top-1 accuracy on {scored_on}", title_justify="left")
    table.add_column("plan")
    for column in ("million MACs", "accuracy %", *(["paper %"] if published else [])):
        table.add_column(column, justify="right")
    for plan, value in percent.items():
        text = spec.text(plan)
        row = [text, f"{figures.plan_macs(spec, plan) / 1e6:.1f}", f"{value:.2f}"]
        if published:
            row.append(f"{published[text]:.2f}" if text in published else "")
        table.add_row(*row)
    Console().print(table)


def pareto_table(best: "list[ParetoPoint]", plans: int) -> None:
    """Print the Pareto set, cheapest first."""
    table = Table(title=f"{len(best)} of {plans} plans are Pareto-optimal", title_justify="left")
    table.add_column("plan")
    table.add_column("million MACs", justify="right")
    table.add_column("accuracy %", justify="right")
    for point in best:
        table.add_row(point.plan, f"{point.macs / 1e6:.1f}", f"{point.accuracy_percent:.2f}")
    Console().print(table)


def describe(card: "ModelCard[Shape]") -> dict[str, Any]:
    """Return a model's facts, ready for JSON."""
    shape = asdict(card.shape)
    spec = network_spec(card.shape, card.name, card.classes)
    figures = network_figures(card.shape)
    uniform = {spec.segments[0][plan[0]]: plan for plan in uniform_plans(spec.segments)}
    return {
        "name": card.name,
        **{key: list(value) if isinstance(value, tuple) else value for key, value in shape.items()},
        "widths": [float(name) for name in uniform],
        "macs": {name: figures.plan_macs(spec, plan) for name, plan in uniform.items()},
        "weights": {name: figures.plan_weights(plan) for name, plan in uniform.items()},
        "scored_on": card.scored_on,
        "accuracy_percent": card.accuracy_percent,
        "epochs": card.epochs,
        "training_s": card.training_s,
        "trained_on": card.trained_on,
        "weights_sha256": card.weights_sha256,
        "notes": list(card.notes),
    }


def info_table(facts: dict[str, Any]) -> None:
    """Print a model's facts for people."""
    table = Table(show_header=False, title=facts["name"], title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for key, value in facts.items():
        if isinstance(value, dict):
            text = "\n".join(f"{name}: {number:,}" for name, number in value.items())
        elif isinstance(value, list):
            text = ("\n" if key == "notes" else ", ").join(str(item) for item in value)
        else:
            text = str(value)
        if key != "name":
            table.add_row(key.replace("_", " "), text)
    Console().print(table)


def by_kind(percent: dict[str, float]) -> dict[str, dict[str, float]]:
    """Separate plans that make one choice throughout, named by that choice, from mixed ones."""
    kinds: dict[str, dict[str, float]] = {"uniform": {}, "mixed": {}}
    for plan, value in percent.items():
        choices = plan.split(",")
        if len(set(choices)) == 1:
            kinds["uniform"][choices[0]] = value
        else:
            kinds["mixed"][plan] = value
    return kinds
