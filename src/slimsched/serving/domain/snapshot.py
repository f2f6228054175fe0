"""A snapshot: what a server last reported about itself."""

from msgspec import Struct


class ServerSnapshot(Struct, frozen=True, kw_only=True):
    """One telemetry sample of one server.

    `queued` counts waiting requests by model and segment. `power_source` says where the power figure comes
    from. `waiting` says, by key, why the batches that were tried last could not run.
    """

    taken_s: float
    utilization: float
    power_w: float
    vram_bytes: int
    queued: tuple[int, ...]
    instances: int
    power_source: str = ""
    waiting: dict[str, str] = {}
