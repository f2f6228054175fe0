"""Options that commands about models share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import Struct

from slimsched.cli.options import file_to_write
from slimsched.core.config import Count

if TYPE_CHECKING:
    pass

ModelOption = Annotated[
    Path | None,
    typer.Option("--model", help="Folder that slim model train wrote, or slimvit; SlimResNet if left out."),
]
OptionalDataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Test images (SLIM_DATA if left out); for a model folder also an .npz file."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]


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
