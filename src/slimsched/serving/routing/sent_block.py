"""A block that was sent to a server and has not come back."""

from msgspec import Struct

from slimsched.serving.domain.request import Request


class SentBlock(Struct):
    """Which requests of it are still out, where, and what they cost."""

    server: int
    requests: tuple[Request, ...]
    work_s: float  # per request
    source: int  # where its inputs came from
