"""`slim data`: fetch and check data sets."""

import json
from pathlib import Path
from typing import Annotated

import typer

from slimsched.cli.options import AsJson

app = typer.Typer(no_args_is_help=True)

URL = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
MD5 = "03b5dce01913d631647c71ecec9e9cb8"


@app.command()
def fetch(
    data: Annotated[Path, typer.Option("--data", envvar="SLIM_DATA", help="Folder to put it in.")] = Path(
        "data"
    ),
    url: Annotated[
        str, typer.Option("--url", show_default="the authors' site", help="A mirror of the official archive.")
    ] = URL,
    md5: Annotated[str, typer.Option("--md5", hidden=True)] = MD5,
) -> None:
    """Download the official CIFAR-100 (161 MB), continue where an earlier try stopped, and check its hash.

    Example: slim data fetch --data data/
    """
    from slimsched.cli.progress import byte_bar
    from slimsched.models.data.cifar import ARCHIVE, download, unpack_archive

    with byte_bar(ARCHIVE) as bar:
        archive = download(
            url,
            data / ARCHIVE,
            md5=md5,
            advance=lambda done, total: bar.update(bar.task_ids[0], completed=done, total=total),
        )
    folder = unpack_archive(archive)
    typer.echo(f"CIFAR-100 is in {folder}; use it with --data {data} or SLIM_DATA={data}")


@app.command()
def check(
    data: Annotated[Path, typer.Option("--data", envvar="SLIM_DATA", help="Folder to look into.")],
    as_json: AsJson = False,
) -> None:
    """Read a data folder and show what it holds; CIFAR-100 is checked against its hash.

    Example: slim data check --data data/
    """
    from slimsched.models.data import cifar
    from slimsched.models.data.dataset import has_test_images, open_images

    train = open_images(data, "train")
    test = open_images(data, "test") if has_test_images(data) else None
    facts = {
        "kind": "CIFAR-100" if cifar.find(data) is not None else "class folders",
        "train_images": len(train),
        "test_images": len(test) if test is not None else 0,
        "classes": len(train.classes),
    }
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        typer.echo("\n".join(f"{key.replace('_', ' ')}: {value}" for key, value in facts.items()))
        if test is None:
            typer.echo("no test images of their own: slim model train holds out a fifth and scores those")
