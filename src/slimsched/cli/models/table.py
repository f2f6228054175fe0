"""What `slim model` prints for people: tables of accuracy, of the Pareto set, and a model's facts."""

from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict
from rich.console import Console
from rich.table import Table

from slimsched.models.slimresnet.paper_table import MIXED, PAPER_PERCENT, UNIFORM
from slimsched.models.width import SEGMENTS, WIDTH_TUPLES, WIDTHS, format_widths, parse_widths

if TYPE_CHECKING:
    from slimsched.models.model_files import ModelCard
    from slimsched.models.network import Shape
    from slimsched.models.pareto import ParetoPoint

Widths = tuple[float, ...]


def read_tuples(texts: list[str] | None) -> list[Widths]:
    """Read the width tuples: the paper's eight if none are named, all 256 for 'all'."""
    if not texts:
        return [*UNIFORM, *MIXED]
    if texts == ["all"]:
        return list(WIDTH_TUPLES)
    return list(dict.fromkeys(parse_widths(text) for text in texts))


def accuracy_table(percent: dict[Widths, float], shape: "Shape", *, scored_on: str, paper: bool) -> None:
    """Print each tuple's accuracy beside its arithmetic and, for the shipped model, the paper's figure."""
    table = Table(title=f"top-1 accuracy on {scored_on}", title_justify="left")
    table.add_column("widths")
    for column in ("million MACs", "accuracy %", *(["paper %"] if paper else [])):
        table.add_column(column, justify="right")
    for widths, value in percent.items():
        row = [format_widths(widths), f"{shape.total_macs(widths) / 1e6:.1f}", f"{value:.2f}"]
        if paper:
            row.append(f"{PAPER_PERCENT[widths]:.2f}" if widths in PAPER_PERCENT else "")
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
    shape = card.shape
    return {
        "name": card.name,
        **{key: list(value) if isinstance(value, tuple) else value for key, value in asdict(shape).items()},
        "widths": list(WIDTHS),
        "macs": {str(w): shape.total_macs((w,) * SEGMENTS) for w in WIDTHS},
        "weights": {str(w): sum(shape.parameters(s, w) for s in range(SEGMENTS)) for w in WIDTHS},
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
