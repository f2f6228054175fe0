"""A snapshot: what a server last reported about itself."""

from msgspec import Struct


class ServerSnapshot(Struct, frozen=True, kw_only=True):
    """One telemetry sample of one server.

    `queued` counts waiting requests by model and segment. The sources say where power, utilization and memory
    come from. `waiting` says, by key, why the batches that were tried last could not run. `refused` counts
    since the start how often an instance was not loaded, by cause: memory or utilization.
    """

    taken_s: float
    utilization: float
    power_w: float
    vram_bytes: int
    queued: tuple[int, ...]
    instances: int
    power_source: str = ""
    utilization_source: str = ""
    memory_source: str = ""
    waiting: dict[str, str] = {}
    refused: dict[str, int] = {}
