"""What all compiled lines have; `express_python.hpp` explains it. It exists for types only."""

Group = tuple[int, int, list[int], list[float]]
"""Its number, the number of what its requests mean, their tokens, and when they arrived."""
Notice = tuple[int, bytes, bytes, str, int]
"""What a thread leaves to Python: a file or a token, bytes, the client's address, and what has happened.

HTTP: a connection, what has arrived, what is not yet sent, and a number without a meaning.
gRPC: a call, its headers if it is new, a message, and flags."""

class CompiledLine:
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
    def forget(self) -> None: ...
    def close_for(self, number: int, until_s: float, refusal: bytes, /) -> None: ...
    def limit(
        self,
        connections: int,
        per_address: int,
        held_bytes: int,
        resets_per_s: int,
        idle_s: float,
        proxies: str,
        /,
    ) -> None: ...
    def cuts(self) -> list[int]: ...
    def hold(self, seconds: float, /) -> None: ...
    def awake(self, seconds: float, /) -> None: ...
    def counts(self) -> tuple[int, int]: ...
    def take(
        self, with_requests: bool, most_examples: int, /
    ) -> tuple[list[Group], list[Notice], list[int], list[tuple[int, int]]]: ...
    def copy(self, group: int, input: int, room: memoryview, /) -> None: ...
    def whole(self, group: int, place: int, /) -> bytes: ...
    def release(self, group: int, /) -> None: ...
    def answer(self, tokens: list[int], texts: list[bytes], /) -> None: ...
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
    def drain(self) -> None: ...
    def stop(self) -> None: ...
