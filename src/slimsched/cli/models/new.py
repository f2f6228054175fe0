"""`slim model new`: a model to start from."""

from pathlib import Path
from typing import Annotated

import typer


def command(folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.")]) -> None:
    """Write a small elastic model that works, with comments, for you to change.

    Example: slim model new mymodel && slim model check mymodel
    """
    from slimsched.models.skeleton.writing import write_skeleton

    for path in write_skeleton(folder):
        typer.echo(f"written: {path}")
    typer.echo(f"next: slim model check {folder}")
