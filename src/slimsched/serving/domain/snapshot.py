"""What a server last said of itself."""

from msgspec import Struct


class ServerSnapshot(Struct, frozen=True, kw_only=True):
    """One telemetry sample of one server; `queued` counts waiting requests by model and segment."""

    taken_s: float
    utilization: float
    power_w: float
    vram_bytes: int
    queued: tuple[int, ...]
    instances: int
