"""What the compiled lines have; `express_python.hpp` explains it. It exists for types only."""

from typing import Generic, Literal, TypeVar

Group = tuple[int, int, list[int], list[float]]
"""Its number, the number of what its requests mean, their tokens, and when they arrived."""
HttpNotice = tuple[int, bytes, bytes, str]
"""A connection for Python to serve: its file, what has arrived, what is not sent, its client's address."""
GrpcNotice = tuple[int, bytes, bytes, str, int]
"""A call, its headers if it is new, a message, the client's address, and flags that say what has happened."""
Notice = TypeVar("Notice", HttpNotice, GrpcNotice)

class CompiledLine(Generic[Notice]):
    def __init__(self, listeners: list[int], /) -> None: ...
    def fileno(self) -> int: ...
    def learn(
        self,
        head: bytes,
        text: bytes,
        number: int,
        examples: int,
        longest_s: float,
        body_bytes: int,
        parts: list[tuple[int, int]],
        fixed: list[tuple[int, bytes]],
        /,
    ) -> None: ...
    def tell(
        self,
        word: Literal[
            "forget",  # all heads and proxies
            "close_for",  # refuse what has this number with the text until then
            "proxy",  # the text is the address of one
            "limits",  # those of clients have changed
            "drain",
            "adopt",  # HTTP: serve this file again, whose client has the address
            "gone",  # HTTP: a connection that was lent to Python is closed, of this address
            "full",  # HTTP: what a connection is told that is over a limit: 1, of all; 2, of its address
            "read",  # gRPC: the next message of a call is wanted
            "write",  # gRPC: send a message to a call, before its answer
            "cancel",  # gRPC: end a call without an answer
        ],
        token: int = 0,
        text: bytes = b"",
        until_s: float = 0.0,
        /,
    ) -> None: ...
    def set(self, name: str, value: float, /) -> None: ...
    def cuts(self) -> list[int]: ...
    def counts(self) -> tuple[int, int]: ...
    def take(
        self, with_requests: bool, most_examples: int, /
    ) -> tuple[list[Group], list[Notice], list[int], list[tuple[int, int]]]: ...
    def copy(self, group: int, input: int, room: memoryview, /) -> None: ...
    def whole(self, group: int, place: int, /) -> bytes: ...
    def release(self, group: int, /) -> None: ...
    def answer(self, tokens: list[int], text: bytes, /) -> None: ...
    def answer_alike(
        self,
        tokens: list[int],
        starts: list[int],
        network_ms: list[float],
        numbers: list[int],
        text: tuple[bytes, bytes, bytes],
        examples: int,
        rows: list[tuple[bytes, int, bytes]],
        /,
    ) -> None: ...
    def stop(self) -> None: ...
