"""The events that a local scheduler is told, and the commands that it gives.

Their names are the tags in event logs: renaming one makes old logs unreadable.
"""

from msgspec import Struct

from slimsched.core.clock import Wake, WakeAt
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.model import ModelEntry, ModelsChanged
from slimsched.serving.domain.request import Batch, Block, DropReason, RequestsCancelled

# -- The commands that a local scheduler gives.


class RunBatch(Struct, frozen=True, kw_only=True, tag=True):
    """Run a batch on its instance; `why` says why it has this size."""

    batch: Batch
    why: str


class LoadInstance(Struct, frozen=True, kw_only=True, tag=True):
    """Load an instance."""

    instance: Instance


class UnloadInstance(Struct, frozen=True, kw_only=True, tag=True):
    """Unload an instance and free its memory."""

    instance: int


class DropBlock(Struct, frozen=True, kw_only=True, tag=True):
    """Give up a block, for this reason."""

    block: Block
    reason: DropReason


Command = RunBatch | LoadInstance | UnloadInstance | DropBlock | WakeAt


class Started(Struct, frozen=True, kw_only=True, tag=True):
    """The device is there, with nothing loaded.

    `models` are those to serve, where they are no longer those that the cluster began with.
    """

    models: tuple[ModelEntry, ...] = ()


class BlockArrived(Struct, frozen=True, kw_only=True, tag=True):
    """A block and its inputs have arrived at this server."""

    block: Block


class BatchFinished(Struct, frozen=True, kw_only=True, tag=True):
    """An instance has run its batch, which drew `energy_j` above idle."""

    instance: int
    busy_s: float
    energy_j: float


class InstanceLoaded(Struct, frozen=True, kw_only=True, tag=True):
    """An instance is loaded and ready."""

    instance: int


class InstanceUnloaded(Struct, frozen=True, kw_only=True, tag=True):
    """An instance is unloaded and its memory is free."""

    instance: int


class TelemetrySampled(Struct, frozen=True, kw_only=True, tag=True):
    """The latest sensor reading: utilization in [0, 1] and mean power, over the last period.

    `measured` says that utilization and memory were asked of the device: `vram_bytes` is then what the server
    holds beyond what it held with nothing loaded. Else `vram_bytes` is a sum of profiles. `free_bytes` is
    what the device has left for anyone, where it was asked.
    """

    utilization: float
    power_w: float
    vram_bytes: int
    measured: bool = False
    free_bytes: int | None = None


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
