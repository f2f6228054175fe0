"""A batch: what one instance runs at once."""

from msgspec import Struct

from slimsched.serving.domain.block import Block
from slimsched.serving.domain.key import Key


class Batch(Struct, frozen=True, kw_only=True):
    """Blocks (or parts of them) that run together on an instance, at the choice of `key`.

    With upward merge, a block may have asked for a narrower choice than the batch runs at. A batch that runs
    several segments holds one instance per segment: `instance`, then `also`. Its blocks may have asked for
    more segments.
    """

    id: int
    key: Key
    instance: int
    blocks: tuple[Block, ...]
    size: int
    also: tuple[int, ...] = ()
