"""What a local scheduler wants done."""

from msgspec import Struct

from slimsched.domain.batch import Batch
from slimsched.domain.block import Block
from slimsched.domain.instance import Instance
from slimsched.domain.timer import WakeAt


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
    reason: str


Command = RunBatch | LoadInstance | UnloadInstance | DropBlock | WakeAt
