"""`slim client`: classify pictures with a running server."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from slimsched.cli.options import AsJson, with_options
from slimsched.cli.serving.terms import ServerOptions, TermsOptions


@with_options
def command(
    files: Annotated[list[Path], typer.Argument(help="Pictures of any size.", metavar="IMAGE...")],
    server: ServerOptions,
    terms: TermsOptions,
    as_json: AsJson = False,
) -> None:
    """Classify pictures: send the middle square of each, scaled to 32 × 32, to a running `slim serve`.

    Examples:

      slim client photo.jpg

      slim client photo.jpg --width 0.25 --json

      slim client *.png --min-accuracy 75 --deadline-ms 200
    """
    from slimsched.models.data.image_folder import load_square
    from slimsched.serving.api.client import Client

    rows: list[dict[str, Any]] = []
    with Client(server.url, token=server.token, ca_file=server.ca_path) as client:
        for file in files:
            answer = client.classify(load_square(file, 32), **terms.given())
            rows.append(
                {
                    "file": str(file),
                    "class": int(answer.classes[0]),
                    "label": answer.labels[0],
                    "confidence": round(float(answer.confidence()[0]), 4),
                    "receipt": answer.receipt,
                }
            )
            if not as_json:
                _print(rows[-1])
    if as_json:
        print(json.dumps(rows, indent=1))


def _print(row: dict[str, Any]) -> None:
    receipt = row["receipt"]
    spent_ms = receipt["queue_ms"] + receipt["compute_ms"] + receipt["network_ms"]
    Console(soft_wrap=True).print(
        f"{row['file']}: [bold]{row['label']}[/bold] ({row['confidence']:.0%})  "
        f"widths {receipt['widths']} on {receipt['servers']}, {spent_ms:.1f} ms, "
        f"{receipt['energy_mj']:.1f} mJ ({receipt['energy_source']})",
        highlight=False,
    )
