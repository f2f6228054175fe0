"""`slim client`: classify pictures with a running server."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slimsched.cli.serving import scenario as options


def command(
    files: Annotated[list[Path], typer.Argument(help="Pictures of any size.", metavar="IMAGE...")],
    url: Annotated[
        str, typer.Option("--url", envvar="SLIM_URL", help="The server.")
    ] = "http://127.0.0.1:8000",
    token: Annotated[str, typer.Option("--token", envvar="SLIM_TOKEN", help="Its bearer token.")] = "",
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="Certificate to trust for https (PEM).")
    ] = None,
    width: Annotated[float | None, typer.Option("--width", help="Width of every segment.")] = None,
    min_accuracy: Annotated[
        float | None, typer.Option("--min-accuracy", help="Least expected accuracy, percent or share.")
    ] = None,
    deadline_ms: Annotated[
        float | None, typer.Option("--deadline-ms", help="Give up after this time.")
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", help="Higher goes first.")] = None,
    max_energy_mj: Annotated[
        float | None, typer.Option("--max-energy-mj", help="Most energy an image may take.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Classify pictures: the middle square of each, scaled to 32 × 32, sent to a running `slim serve`.

    Examples:

      slim client photo.jpg

      slim client photo.jpg --width 0.25 --json

      slim client *.png --min-accuracy 75 --deadline-ms 200
    """
    from slimsched.models.data.image_folder import load_square
    from slimsched.serving.api.client import Client

    with Client(url, token=token, ca_file=None if ca_file is None else str(ca_file)) as client:
        found = []
        for file in files:
            answer = client.classify(
                load_square(file, 32),
                width=width,
                min_accuracy=min_accuracy,
                deadline_ms=deadline_ms,
                priority=priority,
                max_energy_mj=max_energy_mj,
            )
            found.append(
                {
                    "file": str(file),
                    "class": int(answer.classes[0]),
                    "label": answer.labels[0],
                    "confidence": round(float(answer.confidence()[0]), 4),
                    "receipt": answer.receipt,
                }
            )
            if not as_json:
                _print(found[-1])
    if as_json:
        print(json.dumps(found, indent=1))


def _print(row: dict[str, object]) -> None:
    receipt = row["receipt"]
    assert isinstance(receipt, dict)
    spent_ms = receipt["queue_ms"] + receipt["compute_ms"] + receipt["network_ms"]
    Console(soft_wrap=True).print(
        f"{row['file']}: [bold]{row['label']}[/bold] ({row['confidence']:.0%})  "
        f"widths {receipt['widths']} on {receipt['servers']}, {spent_ms:.1f} ms, "
        f"{receipt['energy_mj']:.1f} mJ ({receipt['energy_source']})",
        highlight=False,
    )
