"""Everything that a front process needs to start, sent as JSON to its standard input."""

from collections.abc import Sequence

from msgspec import Struct


class FrontSpec(Struct, frozen=True, kw_only=True):
    """One front process: where it listens, and where it finds the gateway and the shared memory."""

    index: int
    life: int = 1
    """Counts how often it has been started."""
    secret: str
    """Known to the gateway and its processes only; it proves to them who is calling."""
    calls_socket: str
    http_socket: str
    grpc_socket: str
    arena: str = ""
    """The file with large inputs; empty if inputs travel in messages."""
    fronts: int
    host: str
    http_port: int
    grpc_port: int
    token: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    cors: Sequence[str] = ()
    """The origins whose web pages may use the server."""
    shared_memory: bool = False
    """Whether clients may register their own."""
    access_log: bool = False
    log_format: str = "text"
    log_level: str = "INFO"
