"""What a local scheduler is told."""

from msgspec import Struct

from slimsched.kernel.wake import Wake
from slimsched.serving.domain.block import Block
from slimsched.serving.domain.cancellation import RequestsCancelled
from slimsched.serving.domain.model_change import ModelEntry, ModelsChanged


class Started(Struct, frozen=True, kw_only=True, tag=True):
    """The device is there, with nothing loaded.

    `models` are those to serve, where they are no longer those that the cluster began with.
    """

    models: tuple[ModelEntry, ...] = ()


class BlockArrived(Struct, frozen=True, kw_only=True, tag=True):
    """The router sent a block, and its input lies on this server now."""

    block: Block


class BatchFinished(Struct, frozen=True, kw_only=True, tag=True):
    """An instance has run its batch; energy is what the batch drew above idle."""

    instance: int
    busy_s: float
    energy_j: float


class InstanceLoaded(Struct, frozen=True, kw_only=True, tag=True):
    """An instance is ready."""

    instance: int


class InstanceUnloaded(Struct, frozen=True, kw_only=True, tag=True):
    """An instance has given its memory back."""

    instance: int


class TelemetrySampled(Struct, frozen=True, kw_only=True, tag=True):
    """The sensors' latest reading: utilization in [0, 1] over the last period, mean power."""

    utilization: float
    power_w: float
    vram_bytes: int


Event = (
    Started
    | BlockArrived
    | RequestsCancelled
    | BatchFinished
    | InstanceLoaded
    | InstanceUnloaded
    | TelemetrySampled
    | ModelsChanged
    | Wake
)
