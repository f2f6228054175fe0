"""The compiled part of the express line of gRPC; `express_grpc.cpp` explains it."""

from slimsched.serving.api.express._compiled_line import CompiledLine

class Express(CompiledLine):
    def __init__(self, listeners: list[int], /) -> None: ...
    def read(self, token: int, /) -> None: ...
    def write(self, token: int, message: bytes, /) -> None: ...
    def cancel(self, token: int, /) -> None: ...
    def limit_calls(
        self,
        message_bytes: int,
        calls: int,
        unread_bytes: int,
        header_bytes: int,
        headers: int,
        sending_s: float,
        head_s: float,
        /,
    ) -> None: ...
