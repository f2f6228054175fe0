"""What the gateway wants done."""

from msgspec import Struct

from slimsched.kernel.wake import WakeAt
from slimsched.serving.domain.block import Block
from slimsched.serving.domain.drop_reason import DropReason
from slimsched.serving.domain.request import Request


class SendBlock(Struct, frozen=True, kw_only=True, tag=True):
    """Send a block to a server; its inputs lie at `source` (-1: the gateway)."""

    server: int
    block: Block
    source: int
    reason: str


class Answer(Struct, frozen=True, kw_only=True, tag=True):
    """These requests are done; the widths they ran at are in them."""

    requests: tuple[Request, ...]


class Drop(Struct, frozen=True, kw_only=True, tag=True):
    """Give requests up and say why."""

    requests: tuple[Request, ...]
    reason: DropReason
    detail: str = ""


class RecallRequests(Struct, frozen=True, kw_only=True, tag=True):
    """Nobody waits for these requests, which are at a server: what has not begun there shall not begin."""

    server: int
    requests: tuple[int, ...]


class Forget(Struct, frozen=True, kw_only=True, tag=True):
    """A server holds activations of these requests that nobody will ask for: it shall free them."""

    server: int
    requests: tuple[int, ...]


Command = SendBlock | Answer | Drop | RecallRequests | Forget | WakeAt
