"""`slim model`: train, evaluate and look at the slimmable network."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from slimsched.cli.options import AsJson, with_options
from slimsched.kernel.errors import ConfigError
from slimsched.models.slimresnet.paper_table import UNIFORM
from slimsched.models.width import WIDTH_TUPLES, format_widths

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from slimsched.models.data.image_set import ImageSet
    from slimsched.models.network_choice import LoadedModel
    from slimsched.models.training.run import RunResult

app = typer.Typer(no_args_is_help=True)

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
    typer.Option("--model", help="Folder that slim model train wrote; the shipped model if left out."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


@app.callback()
def root() -> None:
    """Commands for the slimmable network."""


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
    device: DeviceOption = "auto"
    limit_s: Annotated[
        float | None, typer.Option("--limit-s", help="Stop with a checkpoint before this many seconds.")
    ] = None


@app.command()
@with_options
def train(options: TrainOptions) -> None:
    """Train a slimmable network; run it again with the same --out to continue after an interruption.

    Example: slim model train --data photos/ --config configs/train-folder.toml --out runs/photos
    """
    from slimsched.cli.progress import TrainingProgress
    from slimsched.models.device import pick_device
    from slimsched.models.network_choice import load
    from slimsched.models.training.recipe import read_recipe
    from slimsched.models.training.run import run_training

    recipe, device = read_recipe(options.config), pick_device(options.device)
    teacher = load(options.teacher).net.to(device) if options.teacher is not None else None
    with TrainingProgress(recipe.training.epochs) as progress:
        result = run_training(
            recipe,
            options.data,
            options.out,
            device=device,
            teacher=teacher,
            report=progress.report,
            advance=progress.advance,
            limit_s=options.limit_s,
        )
    _print_training(result, options.out)


def _print_training(result: "RunResult", out: Path) -> None:
    done = result.progress
    if not result.finished:
        text = f"stopped after epoch {done.epoch} of {done.epochs or '?'}"
        typer.echo(f"{text}; run the same command to continue")
        return
    typer.echo(f"trained {done.epoch} epochs in {done.seconds / 60:.1f} min; model in {out}")
    uniform = {name: result.card.accuracy_percent[name] for name in map(format_widths, UNIFORM)}
    scores = ", ".join(f"{name.split(',')[0]}: {percent:.1f} %" for name, percent in uniform.items())
    typer.echo(f"accuracy by width on {result.card.scored_on}: {scores}")
    if result.warning:
        typer.echo(result.warning, err=True)


class EvaluateOptions(Struct, frozen=True, kw_only=True):
    """Which model to evaluate, on what, at which widths."""

    data: DataOption
    widths: Annotated[
        list[str] | None,
        typer.Option("--widths", help="'0.5', '0.25,0.5,0.75,1.0' or 'all'; may be given several times."),
    ] = None
    model: ModelOption = None
    device: DeviceOption = "auto"
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images at a time.")] = 250
    bits: Annotated[
        Path | None,
        typer.Option("--bits", help="With --widths all: write which images are right, one bit each."),
    ] = None
    everything: Annotated[
        bool, typer.Option("--all", help="Score every picture of a folder, the training images too.")
    ] = False

    @property
    def run(self) -> Path | None:
        """The folder of the training run that made the model; None for the shipped one."""
        return self.model if self.model is None or self.model.is_dir() else self.model.parent


@app.command()
@with_options
def evaluate(options: EvaluateOptions, as_json: AsJson = False) -> None:
    """Measure top-1 accuracy on images that were not trained on; at eight width tuples unless told otherwise.

    These are the data's own test images or, in a folder without any, the pictures that training held out.

    Example: slim model evaluate --data data/ --widths 0.25 --widths 0.25,0.5,0.75,1.0 --json
    """
    from slimsched.cli.models.table import accuracy_table, read_tuples
    from slimsched.models.correctness import write_correctness
    from slimsched.models.data.scored_images import scored_images
    from slimsched.models.evaluation import accuracy_percent
    from slimsched.models.network_choice import load

    tuples = read_tuples(options.widths)
    if options.bits is not None and tuples != list(WIDTH_TUPLES):
        raise ConfigError("--bits stores all 256 tuples; add --widths all")
    trained = load(options.model)
    card = trained.card
    scored = scored_images(
        options.data,
        side=card.shape.image_size,
        classes=card.classes,
        run=options.run,
        everything=options.everything,
    )
    correct = _score(trained, scored.images, tuples, options)
    if options.bits is not None:
        write_correctness(options.bits, correct)
    percent = {pick: accuracy_percent(row) for pick, row in zip(tuples, correct, strict=True)}
    if as_json:
        typer.echo(json.dumps({**_by_kind(percent), "scored_on": scored.description}))
    else:
        accuracy_table(percent, card.shape, scored_on=scored.description, paper=options.model is None)


def _score(
    trained: "LoadedModel", images: "ImageSet", tuples: list[tuple[float, ...]], options: EvaluateOptions
) -> "NDArray[np.bool_]":
    """Run every image at every tuple; return which answers are right."""
    from slimsched.cli.progress import image_bar
    from slimsched.models.device import pick_device
    from slimsched.models.evaluation import Evaluator

    evaluator = Evaluator(trained.net.to(pick_device(options.device)), trained.card.colours)
    with image_bar(f"{len(tuples)} tuples", len(images)) as bar:
        return evaluator.correct(
            images, tuples, batch=options.batch, advance=lambda done: bar.advance(bar.task_ids[0], done)
        )


def _by_kind(percent: dict[tuple[float, ...], float]) -> dict[str, dict[str, float]]:
    """Separate tuples of one width from mixed ones, for JSON."""
    return {
        "uniform": {str(pick[0]): value for pick, value in percent.items() if len(set(pick)) == 1},
        "mixed": {format_widths(pick): value for pick, value in percent.items() if len(set(pick)) > 1},
    }


@app.command()
def pareto(
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the set into this .png, .svg or .pdf.")
    ] = None,
    bits: Annotated[
        Path | None,
        typer.Option(
            "--bits", help="File that slim model evaluate --bits wrote; the shipped one if left out."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the width tuples that no other beats in accuracy for the same arithmetic.

    Example: slim model pareto --plot pareto.png
    """
    from slimsched.cli.models.table import pareto_table
    from slimsched.models.correctness import read_correctness
    from slimsched.models.pareto import all_points, pareto_set
    from slimsched.models.slimresnet.shape import SLIM_RESNET

    points = all_points(SLIM_RESNET, read_correctness(bits))
    best = pareto_set(points)
    if plot is not None:
        from slimsched.models.pareto_plot import plot_pareto

        plot_pareto(points, best, plot)
    if as_json:
        rows = [
            {"widths": format_widths(p.widths), "macs": p.macs, "accuracy_percent": p.accuracy_percent}
            for p in best
        ]
        typer.echo(json.dumps(rows))
    else:
        pareto_table(best)


@app.command()
def info(model: ModelOption = None, as_json: AsJson = False) -> None:
    """Show what a model is: shape, arithmetic and weights by width, accuracy, training, hash.

    Example: slim model info --json
    """
    from slimsched.cli.models.table import describe, info_table
    from slimsched.models.network_choice import load

    facts = describe(load(model).card)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        info_table(facts)
