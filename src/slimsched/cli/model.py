"""`slim model`: train, evaluate and look at the slimmable network."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)

DataOption = Annotated[
    Path,
    typer.Option(
        "--data",
        envvar="SLIM_DATA",
        help="Folder with CIFAR-100 (released or packed), or with one sub-folder of images a class.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


@app.callback()
def root() -> None:
    """Group of commands."""


@app.command()
def train(
    data: DataOption,
    config: Annotated[Path, typer.Option("--config", help="Recipe file, such as configs/train-cifar100.toml.")],
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
    from slimsched.slimmable.dataset import open_images
    from slimsched.slimmable.recipe import read_recipe
    from slimsched.slimmable.run_log import RunLog
    from slimsched.slimmable.training import train as train_network
    from slimsched.slimmable.weights import TRAINED, ModelCard, load, pick_device, save

    recipe = read_recipe(config)
    images = open_images(data, "train", side=recipe.network.image_size)
    chosen = pick_device(device)
    tutor = load(teacher).net.to(chosen) if teacher is not None else None
    held_out = None
    if recipe.training.held_out:
        images, held_out = images.split(recipe.training.held_out, seed=recipe.training.seed)
    colours = images.colours()
    with RunLog(out) as log, TrainingProgress(recipe.training.epochs) as progress:

        def report(epoch_report):  # type: ignore[no-untyped-def]
            log.write(epoch_report)
            progress.report(epoch_report)

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
