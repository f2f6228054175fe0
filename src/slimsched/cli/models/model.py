"""`slim model`: train, evaluate and look at the slimmable network."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slimsched.cli.models import check, new

if TYPE_CHECKING:
    from slimsched.models.training.loop import EpochReport

app = typer.Typer(no_args_is_help=True)

DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        envvar="SLIM_DATA",
        help="Folder with CIFAR-100 (released or packed), or with one sub-folder of images a class.",
    ),
]
OptionalDataOption = Annotated[
    Path | None,
    typer.Option("--data", envvar="SLIM_DATA", help="Test images; for a model folder also an .npz file."),
]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", help="Folder that slim model train wrote; the shipped model when left out."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
FolderArgument = Annotated[
    Path | None, typer.Argument(metavar="[DIR]", help="Model folder: any model; see docs/models.md.")
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


@app.callback()
def root() -> None:
    """Group of commands."""


app.command("new")(new.command)
app.command("check")(check.command)


@app.command()
def train(
    data: DataOption,
    config: Annotated[
        Path, typer.Option("--config", help="Recipe file, such as configs/train-cifar100.toml.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for checkpoints, scalars and the model.")] = Path(
        "runs/train"
    ),
    teacher: Annotated[
        Path | None, typer.Option("--teacher", help="Model to learn from, where the recipe says so.")
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Train a slimmable network; run it again with the same --out to go on after an interruption.

    Example: slim model train --data photos/ --config configs/train-folder.toml --out runs/photos
    """
    from slimsched.cli.progress import TrainingProgress
    from slimsched.models.data.dataset import open_images
    from slimsched.models.device import pick_device
    from slimsched.models.slimresnet.weights import TRAINED, ModelCard, load, save
    from slimsched.models.training.loop import train as train_network
    from slimsched.models.training.recipe import read_recipe
    from slimsched.models.training.run_log import RunLog

    recipe = read_recipe(config)
    images = open_images(data, "train", side=recipe.network.image_size)
    chosen = pick_device(device)
    tutor = load(teacher).net.to(chosen) if teacher is not None else None
    held_out = None
    if recipe.training.held_out:
        images, held_out = images.split(recipe.training.held_out, seed=recipe.training.seed)
    colours = images.colours()
    with RunLog(out) as log, TrainingProgress(recipe.training.epochs) as progress:

        def report(epoch: "EpochReport") -> None:
            log.write(epoch)
            progress.report(epoch)

        net, last = train_network(
            recipe,
            images,
            colours=colours,
            folder=out,
            device=chosen,
            held_out=held_out,
            teacher=tutor,
            report=report,
            advance=progress.advance,
        )
    card = ModelCard(
        name=out.name,
        shape=net.shape,
        colours=colours,
        classes=images.classes,
        recipe=recipe,
        epochs=last.epoch,
        training_s=round(last.seconds, 1),
        trained_on=f"{len(images)} images, {chosen}",
    )
    save(out, TRAINED, net, card)
    typer.echo(f"trained {last.epoch} epochs in {last.seconds / 60:.1f} min; model in {out}")


@app.command()
def evaluate(
    folder: FolderArgument = None,
    data: OptionalDataOption = None,
    widths: Annotated[
        list[str] | None,
        typer.Option("--widths", help="'0.5', '0.25,0.5,0.75,1.0' or 'all'; may be given several times."),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images at a time.")] = 250,
    bits: Annotated[
        Path | None,
        typer.Option("--bits", help="With --widths all: write which image is right, one bit each."),
    ] = None,
    agreement: Annotated[
        bool, typer.Option("--agreement", help="With DIR: no labels; compare plans with the widest one.")
    ] = False,
    examples: Annotated[
        int, typer.Option("--examples", min=1, help="With --agreement and no data: random inputs.")
    ] = 256,
    as_json: JsonOption = False,
) -> None:
    """Measure top-1 accuracy on the test images; the paper's eight tuples unless told otherwise.

    With a model folder: measure every plan of that model and write its quality.npz.

    Examples:

      slim model evaluate --data data/ --widths 0.25 --widths 0.25,0.5,0.75,1.0 --json

      slim model evaluate mymodel --agreement
    """
    if folder is not None:
        from slimsched.cli.models.evaluate import evaluate_folder

        evaluate_folder(
            folder, data, agreement=agreement, examples=examples, batch=batch, device=device, as_json=as_json
        )
        return
    from slimsched.cli.models.table import accuracy_table, read_tuples
    from slimsched.cli.progress import image_bar
    from slimsched.kernel.errors import ConfigError
    from slimsched.models.correctness import write_correctness
    from slimsched.models.data.dataset import open_images
    from slimsched.models.device import pick_device
    from slimsched.models.evaluation import Evaluator, accuracy_percent
    from slimsched.models.slimresnet.weights import load
    from slimsched.models.width import WIDTH_TUPLES, format_widths

    if data is None:
        raise ConfigError("name the test images with --data or SLIM_DATA")
    tuples = read_tuples(widths)
    if bits is not None and tuples != list(WIDTH_TUPLES):
        raise ConfigError("--bits stores all 256 tuples; add --widths all")
    trained = load(model)
    images = open_images(data, "test", side=trained.card.shape.image_size, classes=trained.card.classes)
    evaluator = Evaluator(trained.net.to(pick_device(device)), trained.card.colours)
    with image_bar(f"{len(tuples)} tuples", len(images)) as bar:
        correct = evaluator.correct(
            images, tuples, batch=batch, advance=lambda done: bar.advance(bar.task_ids[0], done)
        )
    if bits is not None:
        write_correctness(bits, correct)
    found = {pick: accuracy_percent(row) for pick, row in zip(tuples, correct, strict=True)}
    if as_json:
        uniform = {str(pick[0]): value for pick, value in found.items() if len(set(pick)) == 1}
        mixed = {format_widths(pick): value for pick, value in found.items() if len(set(pick)) > 1}
        typer.echo(json.dumps({"uniform": uniform, "mixed": mixed}))
    else:
        accuracy_table(found, trained.card.shape, images=len(images), paper=model is None)


@app.command()
def pareto(
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw it into this .png, .svg or .pdf.")] = None,
    bits: Annotated[
        Path | None,
        typer.Option("--bits", help="File from slim model evaluate --bits; else the shipped one."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the width tuples that no other beats in accuracy for the same arithmetic.

    Example: slim model pareto --plot pareto.png
    """
    from slimsched.cli.models.table import pareto_table
    from slimsched.models.correctness import read_correctness
    from slimsched.models.pareto import all_points, pareto_set
    from slimsched.models.slimresnet.shape import SLIM_RESNET
    from slimsched.models.width import format_widths

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
def info(folder: FolderArgument = None, model: ModelOption = None, as_json: JsonOption = False) -> None:
    """Say what a model is: spec, plans, figures, quality; without DIR, the shipped network's card.

    Examples:

      slim model info --json

      slim model info mymodel
    """
    if folder is not None:
        from slimsched.cli.models.info import show_folder

        show_folder(folder, as_json=as_json)
        return
    from slimsched.cli.models.table import describe, info_table
    from slimsched.models.slimresnet.weights import load

    facts = describe(load(model).card)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        info_table(facts)
