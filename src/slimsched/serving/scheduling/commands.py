"""What a local scheduler wants done."""

from msgspec import Struct

from slimsched.kernel.wake import WakeAt
from slimsched.serving.domain.batch import Batch
from slimsched.serving.domain.block import Block
from slimsched.serving.domain.drop_reason import DropReason
from slimsched.serving.domain.instance import Instance


class RunBatch(Struct, frozen=True, kw_only=True, tag=True):
    """Run a batch on its instance; `why` says what closed it."""

    batch: Batch
    why: str


class LoadInstance(Struct, frozen=True, kw_only=True, tag=True):
    """Make an instance ready."""

    instance: Instance


class UnloadInstance(Struct, frozen=True, kw_only=True, tag=True):
    """Give an instance's memory back."""

    instance: int


class DropBlock(Struct, frozen=True, kw_only=True, tag=True):
    """Give a block up and say why."""

    block: Block
    reason: DropReason


Command = RunBatch | LoadInstance | UnloadInstance | DropBlock | WakeAt
