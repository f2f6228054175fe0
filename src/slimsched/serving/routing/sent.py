"""A sent block: requests that a server works on for the gateway."""

from msgspec import Struct

from slimsched.serving.domain.request import Request


class Sent(Struct):
    """A block that was sent to a server and has not come back."""

    server: int
    requests: tuple[Request, ...]
    work_s: float  # per request
    source: int  # where its inputs came from
