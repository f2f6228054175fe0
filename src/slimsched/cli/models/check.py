"""`slim model check`: run every plan of a model and say what is wrong."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

if TYPE_CHECKING:
    from slimsched.models.check import Report

MOST_PROBLEMS = 4
"""People read a few problems, mend the first, and check again."""

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Model folder, with a model.toml; or a shipped model's name.")
]


def command(
    folder: FolderArgument, as_json: Annotated[bool, typer.Option("--json", help="Print JSON only.")] = False
) -> None:
    """Run every plan on batches of one and three, compare, and write figures.json.

    Exits with 1 if something is wrong.

    Example: slim model check mymodel
    """
    from slimsched.models.check import check_model
    from slimsched.models.loading import load_model
    from slimsched.models.package import FIGURES, write_figures_file
    from slimsched.models.shipped import shipped_folder

    shipped = shipped_folder(str(folder))
    model = load_model(shipped or folder)
    console = Console(stderr=True)
    with console.status("checking") as status:
        report = check_model(model, advance=lambda stage: status.update(f"checking: {stage}"))
    if report.figures is not None and not report.problems and shipped is None:
        write_figures_file(folder / FIGURES, report.spec, report.figures)
    if as_json:
        typer.echo(json.dumps(facts(report)))
    else:
        show(report, folder if shipped is None else None)
    if report.problems:
        raise typer.Exit(1)


def facts(report: "Report") -> dict[str, Any]:
    """A report, ready for JSON."""
    from slimsched.cli.models.plan_table import plan_rows

    return {
        "model": report.spec.name,
        "version": report.spec.version,
        "ok": not report.problems,
        "problems": [
            {"where": one.where, "what": one.what, "remedy": one.remedy, "places": one.places}
            for one in report.problems
        ],
        "hints": report.hints,
        "compared_with_whole": report.compared,
        "plans": plan_rows(report.spec, report.figures, report.handed_bytes) if report.figures else [],
        "handed_over": {report.spec.text(path): text for path, text in report.shapes.items()},
    }


def show(report: "Report", folder: Path | None) -> None:
    """A report for people: the table of plans, or what is wrong. `folder` got the figures, if any did."""
    from slimsched.cli.models.plan_table import plan_table

    console, spec = Console(highlight=False), report.spec
    if report.figures is not None:
        console.print(plan_table(spec, report.figures, report.handed_bytes))
    for one in report.problems[:MOST_PROBLEMS]:
        more = f" and {one.places - 1} more" if one.places > 1 else ""
        console.print(f"[bold red]wrong[/] {escape(one.where)}{more}")
        for line in filter(None, (one.what, one.remedy)):
            console.print(Padding(Text(line), (0, 0, 0, 6)))
    for hint in report.hints:
        console.print(f"hint: {hint}", markup=False)
    if report.problems:
        count = len(report.problems)
        shown = f", {MOST_PROBLEMS} of them here (--json lists all)" if count > MOST_PROBLEMS else ""
        console.print(f"{count} problem{'s' if count > 1 else ''}{shown}; figures.json was not written")
        return
    whole = f"{report.compared} compared with the whole model, " if report.compared else ""
    console.print(
        f"ok: {len(spec.plans)} plans run on batches of 1 and 3, {whole}rows independent, repeatable"
    )
    if folder is not None:
        console.print(f"written: {folder / 'figures.json'}", soft_wrap=True)
