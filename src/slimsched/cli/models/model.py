"""`slim model`: make, check, train, evaluate and look at models."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import Struct

from slimsched.cli.models import check, new, tune
from slimsched.cli.options import AsJson, with_options
from slimsched.cli.output_path import file_to_write, picture
from slimsched.cli.serving.profile import DeviceOptions, MeasureOptions, measure
from slimsched.core.config import Count, PositiveSeconds
from slimsched.models.shipped import PUBLISHED_PERCENT
from slimsched.models.spec import DEFAULT_MODEL

if TYPE_CHECKING:
    from slimsched.serving.domain.model import ServedModel

app = typer.Typer(no_args_is_help=True)
app.command("new")(new.command)
app.command("check")(check.command)
app.command("tune")(tune.command)

DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        envvar="SLIM_DATA",
        help="Folder with CIFAR-100 (released or packed), or with one sub-folder of images per class.",
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", help="Folder that slim model train wrote, or slimvit; SlimResNet if left out."),
]
FolderArgument = Annotated[
    Path | None, typer.Argument(metavar="[DIR]", help="Model folder: any model; see docs/models.md.")
]
OptionalDataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Test images (SLIM_DATA if left out); for a model folder also an .npz file."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


@app.callback()
def root() -> None:
    """Make, check, train, evaluate and look at models."""


class TrainOptions(Struct, frozen=True, kw_only=True):
    """What to train on, by which recipe, and where to put the model."""

    data: DataOption
    config: Annotated[
        Path, typer.Option("--config", help="Recipe file, such as configs/train-cifar100.toml.")
    ]
    out: Annotated[
        Path, typer.Option("--out", help="Folder for checkpoints, training curves and the model.")
    ] = Path("runs/train")
    teacher: Annotated[
        Path | None, typer.Option("--teacher", help="Model to learn from, if the recipe asks for one.")
    ] = None
    start: Annotated[
        Path | None, typer.Option("--start", help="Model whose weights to begin with, for a second pass.")
    ] = None
    device: DeviceOption = "auto"
    limit_s: Annotated[
        PositiveSeconds | None,
        typer.Option("--limit-s", help="Stop with a checkpoint before this many seconds."),
    ] = None


@app.command()
@with_options
def train(options: TrainOptions) -> None:
    """Train a slimmable network; run it again with the same --out to continue after an interruption.

    Example: slim model train --data photos/ --config configs/train-folder.toml --out runs/photos
    """
    from slimsched.cli.models.table import by_kind
    from slimsched.cli.progress import TrainingProgress
    from slimsched.models.elastic import pick_device
    from slimsched.models.loading import load
    from slimsched.models.training.recipe import read_recipe
    from slimsched.models.training.run import run_training

    recipe, device = read_recipe(options.config), pick_device(options.device)
    teacher = load(options.teacher).net.to(device) if options.teacher is not None else None
    start = load(options.start).net if options.start is not None else None
    with TrainingProgress(recipe.training.epochs) as progress:
        result = run_training(
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
    done = result.progress
    if not result.finished:
        typer.echo(f"stopped after epoch {done.epoch} of {done.epochs or '?'}; run the same command to go on")
        return
    typer.echo(f"trained {done.epoch} epochs in {done.seconds / 60:.1f} min; model in {options.out}")
    uniform = by_kind(result.card.accuracy_percent)["uniform"]
    scores = ", ".join(f"{name}: {percent:.1f} %" for name, percent in uniform.items())
    typer.echo(f"accuracy by width on {result.card.scored_on}: {scores}")
    if result.warning:
        typer.echo(result.warning, err=True)


class EvaluateOptions(Struct, frozen=True, kw_only=True):
    """Which model to evaluate, on what, at which widths."""

    data: OptionalDataOption = None
    widths: Annotated[
        list[str] | None,
        typer.Option("--widths", help="'0.5', '0.25,0.5,0.75,1.0' or 'all'; may be given several times."),
    ] = None
    model: ModelOption = None
    device: DeviceOption = "auto"
    batch: Annotated[Count, typer.Option("--batch", help="Images at a time.")] = 250
    bits: Annotated[
        Path | None,
        typer.Option(
            "--bits",
            callback=file_to_write,
            help="With --widths all: write which images are right, and how sure plans are.",
        ),
    ] = None
    everything: Annotated[
        bool, typer.Option("--all", help="Score every picture of a folder, the training images too.")
    ] = False
    agreement: Annotated[
        bool, typer.Option("--agreement", help="With DIR: no labels; compare plans with the widest one.")
    ] = False
    examples: Annotated[
        Count, typer.Option("--examples", help="With --agreement and no data: random inputs.")
    ] = 256


@app.command()
@with_options
def evaluate(options: EvaluateOptions, folder: FolderArgument = None, as_json: AsJson = False) -> None:
    """Measure what plans are worth.

    With a model folder: every plan of that model, on labelled examples (--data) or by how often it agrees
    with the widest plan (--agreement); writes the folder's quality.npz. Without: the shipped network's top-1
    accuracy on the test images, at the paper's eight plans unless told otherwise.

    Examples:

      slim model evaluate my-model --data my-examples.npz

      slim model evaluate --data data/ --widths 0.25 --widths 0.25,0.5,0.75,1.0 --json
    """
    if folder is not None:
        from slimsched.cli.models.evaluate import evaluate_folder

        evaluate_folder(
            folder,
            options.data,
            agreement=options.agreement,
            examples=options.examples,
            batch=options.batch,
            device=options.device,
            as_json=as_json,
        )
        return
    from slimsched.cli.models.evaluate_trained import evaluate_trained

    evaluate_trained(options, as_json=as_json)


@app.command()
def pareto(
    plot: Annotated[
        Path | None,
        typer.Option("--plot", callback=picture, help="Draw the sets into this .png, .svg or .pdf."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="Also by time and energy on this device; may be given several times."),
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
    from slimsched.cli.models.table import pareto_table
    from slimsched.models.pareto import all_points, pareto_set
    from slimsched.serving.execution.model_source import read_model

    served = [read_model(source) for source in models or [DEFAULT_MODEL]]
    if len(served) > 1 or device:
        _fronts(served, device or [], plot, as_json=as_json)
        return
    model = served[0]
    points = all_points(model.spec, model.figures, model.measured)
    best = pareto_set(points)
    if plot is not None:
        from slimsched.models.pareto import plot_pareto

        plot_pareto(points, best, plot, PUBLISHED_PERCENT if model.name == DEFAULT_MODEL else {})
    if as_json:
        typer.echo(json.dumps(msgspec.to_builtins(best)))
    else:
        pareto_table(best, len(points))


def _fronts(served: "list[ServedModel]", devices: list[str], plot: Path | None, *, as_json: bool) -> None:
    """Compare the plans of several models, at several costs."""
    from slimsched.cli.models.fronts import cost_fronts, fronts_table

    fronts = cost_fronts(served, devices)
    if plot is not None:
        from slimsched.models.pareto import plot_fronts

        plot_fronts(fronts, plot)
    if as_json:
        typer.echo(json.dumps({front.cost: msgspec.to_builtins(front.best()) for front in fronts}))
    else:
        fronts_table(fronts)


@app.command()
@with_options
def profile(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Model folder.")],
    device: DeviceOptions,
    measured: MeasureOptions,
    name: Annotated[
        str, typer.Option("--name", help="The device's name in scenarios; by default cpu-core or cuda.")
    ] = "",
) -> None:
    """Measure a model's steps on this machine and keep the profile in its folder, as slim profile does.

    Example: slim model profile my-model --batches 1,4,16
    """
    measure(device, measured, None, name, str(folder))


@app.command()
def info(folder: FolderArgument = None, model: ModelOption = None, as_json: AsJson = False) -> None:
    """Say what a model is: spec, plans, figures, quality; without DIR, the shipped network's card.

    Examples:

      slim model info my-model

      slim model info --json
    """
    if folder is not None:
        from slimsched.cli.models.info import show_folder

        show_folder(folder, as_json=as_json)
        return
    from slimsched.cli.models.table import describe, info_table
    from slimsched.models.loading import load

    facts = describe(load(model).card)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        info_table(facts)
