"""The commands that a local scheduler gives."""

from msgspec import Struct

from slimsched.kernel.wake import WakeAt
from slimsched.serving.domain.batch import Batch
from slimsched.serving.domain.block import Block
from slimsched.serving.domain.drop_reason import DropReason
from slimsched.serving.domain.instance import Instance


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
