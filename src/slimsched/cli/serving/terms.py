"""Options that say how to reach a running server, and what to ask of it for each request."""

from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from slimsched.core.config import AccuracyFloor, Milliseconds, PositiveAmount, Priority


class ServerOptions(Struct, frozen=True, kw_only=True):
    """Where a server listens, and how to be let in."""

    url: Annotated[str, typer.Option("--url", envvar="SLIM_URL", help="Address of the server.")] = (
        "http://127.0.0.1:8000"
    )
    token: Annotated[
        str,
        typer.Option(
            "--token",
            envvar="SLIM_TOKEN",
            help="Its bearer token; SLIM_TOKEN hides it from the process list.",
        ),
    ] = ""
    ca_file: Annotated[
        Path | None, typer.Option("--ca-file", help="Certificate to trust for https (PEM).")
    ] = None

    @property
    def ca_path(self) -> str | None:
        """The certificate's path as text."""
        return None if self.ca_file is None else str(self.ca_file)


class TermsOptions(Struct, frozen=True, kw_only=True):
    """What a client asks for with each request."""

    plan: Annotated[
        str | None,
        typer.Option(
            "--plan", help="How to run: one choice for every segment (0.5), or one each (0.25,0.5,0.75,1.0)."
        ),
    ] = None
    min_accuracy: Annotated[
        AccuracyFloor | None,
        typer.Option("--min-accuracy", help="Lowest accuracy to expect, as a percentage or a share."),
    ] = None
    deadline_ms: Annotated[
        Milliseconds | None, typer.Option("--deadline-ms", help="Give up on a request after this time.")
    ] = None
    priority: Annotated[Priority | None, typer.Option("--priority", help="Higher goes first.")] = None
    max_energy_mj: Annotated[
        PositiveAmount | None, typer.Option("--max-energy-mj", help="Most energy that one example may take.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return what was asked for; what was left out is not in it."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
