"""`slim model`: make, check, train, evaluate and look at models."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slimsched.cli.models.options import DeviceOption, EvaluateOptions
from slimsched.cli.options import AsJson, picture, with_options
from slimsched.cli.serving.measure import DeviceOptions, measure
from slimsched.core.config import Count, PositiveSeconds, ThreadCount
from slimsched.models.shipped import PUBLISHED_PERCENT
from slimsched.models.spec import DEFAULT_MODEL

if TYPE_CHECKING:
    from slimsched.models.check import Report

app = typer.Typer(no_args_is_help=True)

# -- `slim model new`: a model to start from.


@app.command("new")
def new_command(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.")]) -> None:
    """Write a small elastic model that works, with comments, for you to change.

    Example: slim model new mymodel && slim model check mymodel
    """
    from slimsched.models.skeleton.writing import write_skeleton

    for path in write_skeleton(folder):
        typer.echo(f"written: {path}")
    typer.echo(f"next: slim model check {folder}")


# -- `slim model check`: run every plan of a model and say what is wrong.

MOST_PROBLEMS = 4
"""People read a few problems, mend the first, and check again."""

CheckedFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="Model folder, with a model.toml; or a shipped model's name.")
]


@app.command("check")
def check_command(folder: CheckedFolder, as_json: AsJson = False) -> None:
    """Run every plan on batches of one and three, compare, and write figures.json.

    Exits with 1 if something is wrong.

    Example: slim model check mymodel
    """
    from slimsched.models.check import check_model
    from slimsched.models.loading import load_model
    from slimsched.models.package import FIGURES, figures_json
    from slimsched.models.shipped import shipped_folder

    shipped = shipped_folder(str(folder))
    model = load_model(shipped or folder)
    console = Console(stderr=True)
    with console.status("checking") as status:
        report = check_model(model, advance=lambda stage: status.update(f"checking: {stage}"))
    if report.figures is not None and not report.problems and shipped is None:
        (folder / FIGURES).write_bytes(figures_json(report.spec, report.figures))
    if as_json:
        typer.echo(json.dumps(facts(report)))
    else:
        show(report, folder if shipped is None else None)
    if report.problems:
        raise typer.Exit(1)


def facts(report: "Report") -> dict[str, Any]:
    """A report, ready for JSON."""
    from slimsched.cli.models.tables import plan_rows

    return {
        "model": report.spec.name,
        "version": report.spec.version,
        "ok": not report.problems,
        "problems": msgspec.to_builtins(report.problems),
        "hints": report.hints,
        "compared_with_whole": report.compared,
        "plans": plan_rows(report.spec, report.figures, report.handed_bytes) if report.figures else [],
        "handed_over": {report.spec.text(path): text for path, text in report.shapes.items()},
    }


def show(report: "Report", folder: Path | None) -> None:
    """A report for people: the table of plans, or what is wrong. `folder` got the figures, if any did."""
    from slimsched.cli.models.tables import plan_rows, plan_table

    console, spec = Console(highlight=False), report.spec
    if report.figures is not None:
        console.print(plan_table(spec, plan_rows(spec, report.figures, report.handed_bytes)))
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


# -- `slim model tune`: find the fastest way to run a model on this machine that keeps its answers.


@app.command("tune")
@with_options
def tune_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Model folder.")],
    device: Annotated[Literal["cpu", "cuda"], "Where to run."] = "cpu",
    batch: Annotated[Count, "Batch size to time."] = 8,
    examples: Annotated[Count, "Examples to compare answers on."] = 64,
    threads: Annotated[ThreadCount, "CPU threads to use."] = 1,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Try torch.compile too; compiling takes minutes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Try half precision, another memory format and torch.compile; keep the fastest way in DIR/run.toml.

    A way counts only if at least 99 % of the answers stay the same. Measure the profile again afterwards.

    Example: slim model tune my-model --compile
    """
    import torch

    from slimsched.models.elastic import pick_device, write_run_options
    from slimsched.serving.measure.tune import CANDIDATES, COMPILED, LEAST_AGREEMENT, tune
    from slimsched.serving.scenario.files import read_model

    torch.set_num_threads(threads)
    model = read_model(str(folder), rated=False)
    with Console(stderr=True).status("starting") as status:
        tried, best = tune(
            model,
            pick_device(device),
            (*CANDIDATES, *(COMPILED if compiled else ())),
            sorted({model.spec.narrowest, model.spec.widest}),
            batch=batch,
            examples=max(batch, examples),
            progress=lambda options: status.update(f"running as {options}"),
        )
    write_run_options(folder, device, best.options)
    if as_json:
        print(json.dumps({"tried": msgspec.to_builtins(tried), "chosen": msgspec.to_builtins(best.options)}))
        return
    table = Table("way to run", "plan", "examples/s", "same answers", title_justify="left")
    for one in tried:
        for plan, per_s in one.per_s.items():
            table.add_row(str(one.options), plan, f"{per_s:,.1f}", f"{one.agreement:.1%}")
        if one.trouble:
            table.add_row(str(one.options), "-", "-", f"does not run: {one.trouble}")
    console = Console()
    console.print(table)
    console.print(f"chosen for {device}: {best.options} ({LEAST_AGREEMENT:.0%} of the answers must stay)")
    console.print(f"written: {folder / 'run.toml'}; measure again with slim model profile {folder}")


# -- `slim model train`, `evaluate`, `pareto`, `profile` and `info`.

ModelArgument = Annotated[
    str, typer.Argument(metavar="[DIR]", help="Model folder, or the name of a shipped model.")
]


class NetworkTrainOptions(Struct, frozen=True, kw_only=True):
    """What to train on, by which recipe, and where to put the model."""

    data: Annotated[
        Path,
        typer.Option(
            "--data",
            envvar="SLIM_DATA",
            help="Folder with CIFAR-100 (released or packed), or with one sub-folder of images per class.",
        ),
    ]
    config: Annotated[Path, "Recipe file, such as configs/train-cifar100.toml."]
    out: Annotated[Path, "Folder for checkpoints, training curves and the model."] = Path("runs/train")
    teacher: Annotated[Path | None, "Model to learn from, if the recipe asks for one."] = None
    start: Annotated[Path | None, "Model whose weights to begin with, for a second pass."] = None
    device: DeviceOption = "auto"
    limit_s: Annotated[PositiveSeconds | None, "Stop with a checkpoint before this many seconds."] = None


@app.command()
@with_options
def train(options: NetworkTrainOptions) -> None:
    """Train a slimmable network; run it again with the same --out to continue after an interruption.

    Example: slim model train --data photos/ --config configs/train-folder.toml --out runs/photos
    """
    from slimsched.cli.progress import TrainingProgress
    from slimsched.models.elastic import pick_device
    from slimsched.models.loading import load
    from slimsched.models.training.loop import run_training
    from slimsched.models.training.recipe import read_recipe

    recipe, device = read_recipe(options.config), pick_device(options.device)
    teacher = load(options.teacher).net.to(device) if options.teacher is not None else None
    start = load(options.start).net if options.start is not None else None
    with TrainingProgress(recipe.training.epochs) as progress:
        card, done = run_training(
            recipe,
            options.data,
            options.out,
            device=device,
            teacher=teacher,
            start=start,
            report=progress.report,
            advance=progress.advance,
            limit_s=options.limit_s,
        )
    if done.epoch < done.epochs:
        typer.echo(f"stopped after epoch {done.epoch} of {done.epochs}; run the same command to go on")
        return
    typer.echo(f"trained {done.epoch} epochs in {done.seconds / 60:.1f} min; model in {options.out}")
    uniform = {text.split(",")[0]: text for text in card.accuracy_percent if len(set(text.split(","))) == 1}
    scores = ", ".join(f"{name}: {card.accuracy_percent[text]:.1f} %" for name, text in uniform.items())
    typer.echo(f"accuracy by width on {card.scored_on}: {scores}")
    for note in card.notes:
        typer.echo(note, err=True)


@app.command("evaluate")
@with_options
def evaluate_command(
    options: EvaluateOptions, model: ModelArgument = DEFAULT_MODEL, as_json: AsJson = False
) -> None:
    """Measure what plans are worth, on labelled examples (--data) or by how often they agree with the widest.

    A model folder gets all its plans measured, and its quality.npz. A shipped model is measured at the
    paper's eight plans unless told otherwise.

    Examples:

      slim model evaluate my-model --data my-examples.npz

      slim model evaluate --data data/ --widths 0.25 --widths 0.25,0.5,0.75,1.0 --json
    """
    from slimsched.cli.models.evaluate import evaluate

    evaluate(model, options, as_json=as_json)


@app.command()
@with_options
def pareto(
    plot: Annotated[
        Path | None,
        typer.Option("--plot", callback=picture, help="Draw the sets into this .png, .svg or .pdf."),
    ] = None,
    device: Annotated[
        list[str] | None, "Also by time and energy on this device; may be given several times."
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIR]...", help="Model folders, or shipped models by name: one or more."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the plans that no other beats in accuracy for the same arithmetic.

    Without DIR, of the shipped model. With several models, or with --device, plans of all models compete, by
    arithmetic, by device time and, where it was measured, by energy.

    Examples:

      slim model pareto --plot pareto.png

      slim model pareto my-model --json

      slim model pareto slimresnet slimvit --device h200-100 --plot fronts.png
    """
    from slimsched.cli.models.evaluate import cost_fronts, fronts_table
    from slimsched.serving.scenario.files import read_model

    served = [read_model(source) for source in models or [DEFAULT_MODEL]]
    fronts = cost_fronts(served, device or [])
    is_default = [model.name for model in served] == [DEFAULT_MODEL]
    if plot is not None:
        from slimsched.models.quality import plot_fronts

        plot_fronts(fronts, plot, PUBLISHED_PERCENT if is_default and not device else None)
    if not as_json:
        fronts_table(fronts)
    elif len(served) > 1 or device:
        typer.echo(json.dumps({front.cost: msgspec.to_builtins(front.best()) for front in fronts}))
    else:
        typer.echo(json.dumps(msgspec.to_builtins(fronts[0].best())))


@app.command()
@with_options
def profile(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Model folder.")],
    options: DeviceOptions,
) -> None:
    """Measure a model's steps on this machine and keep the profile in its folder, as slim profile does.

    Example: slim model profile my-model --batches 1,4,16
    """
    measure(options, None, str(folder))


@app.command()
def info(model: ModelArgument = DEFAULT_MODEL, as_json: AsJson = False) -> None:
    """Say what a model is: spec, plans, figures, quality and, if it was trained here, how.

    Examples:

      slim model info my-model

      slim model info slimvit --json
    """
    from slimsched.cli.models.evaluate import show

    show(model, as_json=as_json)
