"""`slim jobs export-kubernetes`: a placed gang as manifests. Untested."""

import json
from typing import Annotated

import typer

from slimsched.jobs.domain.placement import Placement, gpus_in
from slimsched.kernel.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the export."""
    app.command("export-kubernetes", context_settings={"allow_interspersed_args": False})(export_kubernetes)


def export_kubernetes(
    job: Annotated[str, typer.Argument(help="The gang's name.")],
    command: Annotated[list[str], typer.Argument(help="What each pod runs.")],
    place: Annotated[str, typer.Option(help="NODE=GPUS,NODE=GPUS,…")],
    image: Annotated[str, typer.Option(help="The container image.")],
) -> None:
    """Write a placed gang as Kubernetes manifests. UNTESTED: read them before you apply them.

    Examples:

      slim jobs export-kubernetes --place node1=8,node2=8 --image my/bert bert-1 python train.py
    """
    from slimsched.jobs.domain.job import Job
    from slimsched.jobs.execution.kubernetes_export import manifests

    placement = _placement(place)
    gang = Job(id=job, arrival_s=0.0, gpus=gpus_in(placement))
    print(json.dumps(manifests(gang, placement, image=image, command=command), indent=2))


def _placement(text: str) -> Placement:
    parts = [part.partition("=") for part in text.split(",")]
    if not all(name and gpus.isdigit() and int(gpus) > 0 for name, _, gpus in parts):
        raise ConfigError(f"placement '{text}' is not NODE=GPUS,NODE=GPUS, such as node1=8,node2=8")
    return tuple((name, int(gpus)) for name, _, gpus in parts)
