"""Options that commands about models share."""

from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from slimsched.core.config import Count

DeviceOption = Annotated[str, "auto, cpu or cuda."]


class EvaluateOptions(Struct, frozen=True, kw_only=True):
    """What to evaluate a model on, and at which widths."""

    data: Annotated[Path | None, "Folder of labelled images, or an .npz file; SLIM_DATA if left out."] = None
    widths: Annotated[
        list[str] | None, "'0.5', '0.25,0.5,0.75,1.0' or 'all'; may be given several times."
    ] = None
    device: DeviceOption = "auto"
    batch: Annotated[Count, "Images at a time."] = 250
    everything: Annotated[
        bool, typer.Option("--all", help="Score every picture of a folder, the training images too.")
    ] = False
    agreement: Annotated[bool, "No labels: compare plans with the widest one."] = False
    examples: Annotated[Count, "With --agreement and no data: random inputs."] = 256
