"""`slim model info DIR`: what a model folder holds."""

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from slimsched.core.config import DataError


def show_folder(folder: Path, *, as_json: bool = False) -> None:
    """Print the spec, the plans with figures and quality, and the profiles. Runs none of the model's code."""
    from slimsched.cli.models.plan_table import plan_rows, plan_table
    from slimsched.models.package import profile_paths, read_figures, read_quality, read_spec
    from slimsched.models.quality import QualityTable
    from slimsched.models.spec import ModelFigures

    spec = read_spec(folder)
    missing: list[str] = []
    figures: ModelFigures | None = None
    quality: QualityTable | None = None
    try:
        figures = read_figures(folder, spec)
    except DataError as error:
        missing.append(str(error))
    try:
        quality = read_quality(folder, spec)
    except DataError as error:
        missing.append(str(error))
    profiles = [path.stem for path in profile_paths(folder)]
    facts: dict[str, Any] = {
        "name": spec.name,
        "version": spec.version,
        "description": spec.description,
        "inputs": [f"{one.name}: {one.datatype} {list(one.shape)}" for one in spec.inputs],
        "outputs": [f"{one.name}: {one.datatype} {list(one.shape)}" for one in spec.outputs],
        "segments": [", ".join(choices) for choices in spec.segments],
        "labels": len(spec.labels),
        "follows_previous": spec.follows_previous,
        "nested": spec.nested,
        "quality": quality.name if quality else None,
        "examples": quality.examples if quality else 0,
        "profiles": profiles,
        "missing": missing,
    }
    if as_json:
        typer.echo(json.dumps(facts | {"plans": plan_rows(spec, figures, None, quality)}))
        return
    console = Console(highlight=False)
    console.print(_facts_table(facts))
    console.print(plan_table(spec, figures, None, quality))
    for one in missing:
        console.print(one, markup=False)


def _facts_table(facts: dict[str, Any]) -> Table:
    table = Table(show_header=False, title=facts["name"], title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in facts.items():
        if key in ("name", "missing") or value in (None, "", []):
            continue
        lines = value if isinstance(value, list) else [value]
        if isinstance(value, bool):
            lines = ["yes" if value else "no"]
        table.add_row(key.replace("_", " "), "\n".join(str(line) for line in lines))
    return table
