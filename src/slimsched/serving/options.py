"""What a server is told: where it listens, whom it lets in, where its servers run, and what it keeps.

Each option is declared here once, with its help: `slim serve` makes a flag of each field, `slimsched.serve`
takes them by name, and front processes get `Listening` as it is.
"""

import logging
import os
import re
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from slimsched.core.config import ConfigError, Count, FrontCount, LogMegabytes, Port, UnknownNameError

SERVING = "goal:in_time=0.7"
"""The best router for requests with deadlines: as much accuracy as fits in the time."""


class Listening(Struct, frozen=True, kw_only=True):
    """Where the two protocols listen, whom they let in, and what they log."""

    host: Annotated[str, "Address to listen at."] = "127.0.0.1"
    http_port: Annotated[Port, "HTTP port; 0 means any free one."] = 8000
    grpc_port: Annotated[Port, "gRPC port; 0 means any free one."] = 8001
    token: Annotated[
        str,
        Meta(
            description="Bearer token that clients must send. Everybody on this machine can see it among the "
            "processes; SLIM_TOKEN or --token-file hide it.",
            extra={"envvar": "SLIM_TOKEN"},
        ),
    ] = ""
    tls_cert: Annotated[Path | None, "Certificate (PEM)."] = None
    tls_key: Annotated[Path | None, "Its key (PEM)."] = None
    cors: Annotated[
        list[str] | None,
        Meta(
            description="Let web pages of this origin use the server from a browser, such as "
            "https://example.org; * lets all pages. May be repeated.",
            extra={"metavar": "ORIGIN"},
        ),
    ] = None
    access_log: Annotated[bool, "Log every response."] = False
    log_format: Annotated[str, "text, or json: one object per line."] = "text"


class ServeOptions(Listening, frozen=True, kw_only=True):
    """Everything that a server is told besides its scenario and its engine."""

    router: Annotated[
        str, "A name, with options after colons (lp:margin=1.2), or your own: file.py:Class."
    ] = SERVING
    goal: Annotated[
        str | None,
        'Limits and one objective, as in "accuracy>=75, p99<=60ms, min energy"; for routers '
        "that follow a goal.",
    ] = None
    fronts: Annotated[
        FrontCount | None,
        "Processes that read requests; 0: the gateway does. If left out, one for every four "
        "cores from eight cores on.",
    ] = None
    token_file: Annotated[Path | None, "File with the bearer token that clients must send."] = None
    limit: Annotated[
        list[str] | None,
        Meta(
            description="Set a limit of the server, such as connections=500; docs/reliability.md lists them.",
            extra={"metavar": "NAME=VALUE"},
        ),
    ] = None
    state: Annotated[
        Path | None,
        Meta(description="File that keeps a goal set while running.", extra={"envvar": "SLIM_STATE"}),
    ] = None
    model_repository: Annotated[
        Path | None,
        Meta(
            description="Let clients load and unload models while running, from this folder only.",
            extra={"metavar": "FOLDER"},
        ),
    ] = None
    shared_memory: Annotated[bool, "Let clients on this machine pass tensors in system shared memory."] = (
        False
    )
    log: Annotated[
        Path | None, "Keep event logs in this folder, one sub-folder per start (see slim replay)."
    ] = None
    log_limit: Annotated[LogMegabytes, "Megabytes that --log keeps; the oldest runs are removed first."] = (
        1000.0
    )
    otel: Annotated[bool, "Send OpenTelemetry traces (OTEL_EXPORTER_OTLP_ENDPOINT says where)."] = False

    def listening(self, token: str) -> Listening:
        """Return what the protocols must know, with the token that was given or read from its file."""
        given = {name: getattr(self, name) for name in Listening.__struct_fields__}
        return Listening(**{**given, "token": token})


ENGINES = ("local", "ray")


class RayOptions(Struct, frozen=True, kw_only=True):
    """Whether processes run on this machine or as actors on Ray, and on which Ray."""

    engine: Annotated[str, "local: processes on this machine; ray: actors on a Ray cluster."] = "local"
    address: Annotated[
        str | None, "Ray cluster to join, as auto or host:port; if left out, one is started."
    ] = None

    def __post_init__(self) -> None:
        """Refuse an engine that is unknown or not installed, and options that do not go with it."""
        if self.engine not in ENGINES:
            raise UnknownNameError("engine", self.engine, ENGINES)
        if self.engine == "ray" and find_spec("ray") is None:
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
        if self.engine != "ray" and (self.address or getattr(self, "attach", "")):
            raise ConfigError("--address and --attach are for --engine ray")


class EngineOptions(RayOptions, frozen=True, kw_only=True):
    """Where servers run."""

    attach: Annotated[str, "Share the servers of this Ray namespace with other gateways."] = ""


# -- The logs of a process: lines of text, or one JSON object per line.

FORMATS = ("text", "json")
_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Writes time, level, logger, message, and the fields given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one record as a line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _OWN}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def set_up_logs(form: str) -> None:
    """Send logs to standard error, as text or as JSON lines; SLIM_LOG sets the lowest level."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(name)s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    logging.basicConfig(level=os.environ.get("SLIM_LOG", "INFO"), handlers=[handler], force=True)


Asked = Literal["auto", "fp32", "bf16", "fp16"]
"""The precision to measure; auto: the fastest on a GPU that keeps the answers, on a CPU the models' own."""


class MachineOptions(Struct, frozen=True, kw_only=True):
    """What of this machine to use; without a scenario."""

    devices: Annotated[
        str | None,
        "What to serve on: cpu, cuda, or some GPUs as in cuda:0,cuda:1; by default all GPUs, else all cores.",
    ] = None
    cores: Annotated[Count | None, "Use so many cores at most."] = None
    precision: Annotated[
        Asked, "Precision of models; auto: on a GPU the fastest that gives the same answers."
    ] = "auto"

    @property
    def kinds(self) -> set[str]:
        """The devices that are asked for, as words; none: whatever there is."""
        kinds = {word.strip() for word in (self.devices or "").split(",") if word.strip()}
        if any(not re.fullmatch(r"cpu|cuda(:\d+)?", word) for word in kinds) or kinds > {"cpu"}:
            raise ConfigError(
                f"--devices {self.devices} is not understood; write cpu, cuda, or cuda:0,cuda:1"
            )
        return kinds
