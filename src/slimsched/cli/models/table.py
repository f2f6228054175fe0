"""What `slim model` prints for people: tables of accuracy, of the Pareto set, and a model's facts."""

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict
from rich.console import Console
from rich.table import Table

from slimsched.models.package import network_figures, network_spec
from slimsched.models.shipped import PUBLISHED_PERCENT
from slimsched.models.spec import ModelFigures, ModelSpec, Path, uniform_plans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slimsched.models.network import ModelCard
    from slimsched.models.package import Shape
    from slimsched.models.pareto import ParetoPoint


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
