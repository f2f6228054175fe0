"""`slim model`: train, evaluate and look at the slimmable network."""

import json
from pathlib import Path
from typing import Annotated

import typer

from slimsched.models.slimresnet.paper_table import UNIFORM
from slimsched.models.width import format_widths

app = typer.Typer(no_args_is_help=True)

DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        envvar="SLIM_DATA",
        help="Folder with CIFAR-100 (released or packed), or with one sub-folder of images a class.",
    ),
]
ModelOption = Annotated[
    Path | None,
    typer.Option("--model", help="Folder that slim model train wrote; the shipped model when left out."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


@app.callback()
def root() -> None:
    """Group of commands."""


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
    limit_s: Annotated[
        float | None, typer.Option("--limit-s", help="Stop with a checkpoint before this many seconds.")
    ] = None,
) -> None:
    """Train a slimmable network; run it again with the same --out to go on after an interruption.

    Example: slim model train --data photos/ --config configs/train-folder.toml --out runs/photos
    """
    from slimsched.cli.progress import TrainingProgress
    from slimsched.models.device import pick_device
    from slimsched.models.network_choice import load
    from slimsched.models.training.recipe import read_recipe
    from slimsched.models.training.run import run_training

    recipe = read_recipe(config)
    chosen = pick_device(device)
    tutor = load(teacher).net.to(chosen) if teacher is not None else None
    with TrainingProgress(recipe.training.epochs) as progress:
        result = run_training(
            recipe,
            data,
            out,
            device=chosen,
            teacher=tutor,
            report=progress.report,
            advance=progress.advance,
            limit_s=limit_s,
        )
    done = result.progress
    if not result.finished:
        typer.echo(f"stopped after epoch {done.epoch} of {done.epochs or '?'}; run the same command to go on")
        return
    typer.echo(f"trained {done.epoch} epochs in {done.seconds / 60:.1f} min; model in {out}")
    uniform = {name: result.card.accuracy_percent[name] for name in map(format_widths, UNIFORM)}
    scores = ", ".join(f"{name.split(',')[0]}: {percent:.1f} %" for name, percent in uniform.items())
    typer.echo(f"accuracy by width on {result.card.scored_on}: {scores}")
    if result.warning:
        typer.echo(result.warning, err=True)


@app.command()
def evaluate(
    data: DataOption,
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
    everything: Annotated[
        bool, typer.Option("--all", help="Score every picture of a folder, the training images too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure top-1 accuracy on images that were not trained on; eight width tuples unless told otherwise.

    These are the data's own test images or, in a folder without any, the pictures that training held out.

    Example: slim model evaluate --data data/ --widths 0.25 --widths 0.25,0.5,0.75,1.0 --json
    """
    from slimsched.cli.models.table import accuracy_table, read_tuples
    from slimsched.cli.progress import image_bar
    from slimsched.kernel.errors import ConfigError
    from slimsched.models.correctness import write_correctness
    from slimsched.models.data.scored_images import scored_images
    from slimsched.models.device import pick_device
    from slimsched.models.evaluation import Evaluator, accuracy_percent
    from slimsched.models.network_choice import load
    from slimsched.models.width import WIDTH_TUPLES

    tuples = read_tuples(widths)
    if bits is not None and tuples != list(WIDTH_TUPLES):
        raise ConfigError("--bits stores all 256 tuples; add --widths all")
    trained = load(model)
    card = trained.card
    run = None if model is None else model if model.is_dir() else model.parent
    scored = scored_images(
        data, side=card.shape.image_size, classes=card.classes, run=run, everything=everything
    )
    images = scored.images
    evaluator = Evaluator(trained.net.to(pick_device(device)), card.colours)
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
        typer.echo(json.dumps({"uniform": uniform, "mixed": mixed, "scored_on": scored.description}))
    else:
        accuracy_table(found, card.shape, scored_on=scored.description, paper=model is None)


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
def info(model: ModelOption = None, as_json: JsonOption = False) -> None:
    """Say what a model is: shape, arithmetic and weights by width, accuracy, training, hash.

    Example: slim model info --json
    """
    from slimsched.cli.models.table import describe, info_table
    from slimsched.models.network_choice import load

    facts = describe(load(model).card)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        info_table(facts)
