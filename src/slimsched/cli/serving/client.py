"""`slim client`: classify pictures with a running server."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from slimsched.cli.options import AsJson, with_options
from slimsched.cli.serving.terms import ServerOptions, TermsOptions
from slimsched.core.config import ConfigError

if TYPE_CHECKING:
    from slimsched.serving.api.client import Client


@with_options
def command(
    files: Annotated[list[Path], typer.Argument(help="Pictures of any size.", metavar="IMAGE...")],
    server: ServerOptions,
    terms: TermsOptions,
    model: Annotated[
        str, typer.Option("--model", help="The model's name or folder, if the server has several.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Classify pictures with a running `slim serve`.

    The middle square of each picture is scaled to the model's size and sent.

    Examples:

      slim client photo.jpg

      slim client photo.jpg --plan 0.25 --json

      slim client *.png --min-accuracy 75 --deadline-ms 200
    """
    from slimsched.models.data.image_folder import load_square
    from slimsched.models.package import read_spec
    from slimsched.serving.api.client import Client

    rows: list[dict[str, Any]] = []
    name = read_spec(Path(model)).name if model and Path(model).is_dir() else model
    with Client(server.url, token=server.token, model=name, ca_file=server.ca_path) as client:
        side = _side(client)
        for file in files:
            answer = client.classify(load_square(file, side), **terms.given())
            rows.append(
                {
                    "file": str(file),
                    "class": int(answer.classes[0]),
                    "label": answer.labels[0] if answer.labels else str(int(answer.classes[0])),
                    "confidence": round(float(answer.confidence()[0]), 4),
                    "receipt": answer.receipt,
                }
            )
            if not as_json:
                _print(rows[-1])
    if as_json:
        print(json.dumps(rows, indent=1))


def _side(client: "Client") -> int:
    """The side of the square images that the model takes."""
    tensor = client.metadata()["inputs"][0]
    shape = tensor["shape"]
    if len(shape) != 4 or shape[1] != 3 or shape[2] != shape[3]:
        raise ConfigError(
            f"input '{tensor['name']}' has shape {shape}: slim client sends square pictures "
            "[n, 3, side, side]; ask other models with the Python client"
        )
    return int(shape[2])


def _print(row: dict[str, Any]) -> None:
    receipt = row["receipt"]
    spent_ms = receipt["queue_ms"] + receipt["compute_ms"] + receipt["network_ms"]
    Console(soft_wrap=True).print(
        f"{row['file']}: [bold]{row['label']}[/bold] ({row['confidence']:.0%})  "
        f"plan {receipt['choices']} on {receipt['servers']}, {spent_ms:.1f} ms, "
        f"{receipt['energy_mj']:.1f} mJ ({receipt['energy_source']})"
        + (f"; limit missed: {receipt['missed']}" if "missed" in receipt else ""),
        highlight=False,
    )
