"""The commands that the gateway gives."""

from msgspec import Struct

from slimsched.core.clock import WakeAt
from slimsched.serving.domain.request import Block, DropReason, Request, Why


class SendBlock(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Send a block to a server; its inputs lie at `source` (-1: the gateway)."""

    server: int
    block: Block
    source: int
    reason: str
    why: Why | None = None


class Answer(Struct, frozen=True, kw_only=True, tag=True):
    """Answer these requests; each holds the choices it ran at."""

    requests: tuple[Request, ...]


class Drop(Struct, frozen=True, kw_only=True, tag=True):
    """Give up these requests, for this reason."""

    requests: tuple[Request, ...]
    reason: DropReason
    detail: str = ""


class RecallRequests(Struct, frozen=True, kw_only=True, tag=True):
    """Tell a server not to begin these requests: nobody waits for them any more."""

    server: int
    requests: tuple[int, ...]


class Forget(Struct, frozen=True, kw_only=True, tag=True):
    """Tell a server to free the activations of these requests: nobody will ask for them."""

    server: int
    requests: tuple[int, ...]


Command = SendBlock | Answer | Drop | RecallRequests | Forget | WakeAt
