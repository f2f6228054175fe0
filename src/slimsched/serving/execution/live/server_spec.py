"""Everything that a server process needs to start, sent as JSON to its standard input."""

from typing import Literal

from msgspec import Struct

from slimsched.core.log import Header
from slimsched.serving.domain.cluster import Host
from slimsched.serving.domain.profile import ProfileRecord
from slimsched.serving.scheduler.scheduler import SchedulerOptions

CANNOT_START = 3
"""The exit code of a server that said why it cannot start."""


class ServerSpec(Struct, frozen=True, kw_only=True):
    """One server: its name, its host, the addresses of gateway and peers, and the start of its clock."""

    index: int
    name: str
    host: Host
    scheduler: SchedulerOptions
    models: list[str]
    """Where each model comes from: the name of a shipped model, or a folder."""
    profiles: list[ProfileRecord]
    """What each model costs on this device, in the order of the models."""
    numbers: list[int] = []
    """The models' numbers, where they are no longer those that the cluster began with."""
    gateway_socket: str
    own_socket: str
    shared_prefix: str
    secret: str = ""
    """Known to the gateway and its servers only; it proves to them who is calling."""
    clock_zero_s: float
    telemetry_period_s: float
    sensors: Literal["measured", "modelled"] = "measured"
    """Whether utilization and memory are asked of the device."""
    arena: str = ""
    """The file with large inputs, shared with the gateway; empty if inputs come in messages."""
    life: int = 1
    """Counts how often the server has been started."""
    log: str = ""
    """The folder for the log; empty for no log."""
    log_header: Header | None = None
    log_limit_bytes: int = 0
    """Limit for all logs of this server, restarts included; 0 for no limit."""
