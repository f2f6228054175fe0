"""The express line of HTTP: requests with known heads are read without Python.

A thread of its own (`express.cpp`) compares the head of each request with those it has learnt. What it does
not know it lends, with the connection, to the protocol in Python; if that request turns out to be a plain
inference call, the thread learns its head and gets the connection back.

Where the compiled part is missing, with TLS, and with SLIM_PURE=1 in the environment, every connection is
served in Python from the start.
"""

import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slimsched.core.config import SlimError
from slimsched.serving.api.bundle_link import BundleLink
from slimsched.serving.api.call import Call
from slimsched.serving.api.desk import CLIENT_LEFT, Desk
from slimsched.serving.api.express_line import ExpressLine
from slimsched.serving.api.http_message import raw_layout, write_answer, write_around
from slimsched.serving.api.http_protocol import Handler, HttpProtocol
from slimsched.serving.api.http_response import HttpResponse, refused, response_of, written
from slimsched.serving.api.known_head import AnswerForm, is_plain_call
from slimsched.serving.api.lent_connection import LentConnection
from slimsched.serving.api.receipt import InferenceResult
from slimsched.serving.api.refusal import RefusalError, TooMany, Unavailable
from slimsched.serving.api.request_reader import HttpRequest, RequestReader, read_length

if TYPE_CHECKING:
    from slimsched.serving.api._compiled_line import Notice

try:
    from slimsched.serving.api import _express
except ImportError:  # not compiled here
    is_available = False
else:
    is_available = not os.environ.get("SLIM_PURE")

LARGEST_BYTES = 128 * 2**10
"""The largest request that is worth it: larger ones are received straight where servers read them."""

UNUSUAL = ("transfer-encoding", "expect", "upgrade")
"""A head with one of these headers is read each time."""


class Express(ExpressLine):
    """The line of HTTP: lends connections to the protocol, and gets them back."""

    protocol, form = "http", AnswerForm(write_around, lambda _: b"")
    fine, left, too_many = "200", CLIENT_LEFT, str(TooMany.status)

    def __init__(
        self,
        desk: Desk,
        link: BundleLink,
        connect: Callable[[LentConnection], HttpProtocol],
        handle: Handler,
        sockets: Sequence[socket.socket],
    ) -> None:
        self._connect, self._handle = connect, handle
        self._native = _express.Express([one.fileno() for one in sockets])
        super().__init__(self._native, desk, link, sockets)

    # -- heads

    def forget(self) -> None:
        """Forget all heads: models or limits have changed."""
        super().forget()
        limits = self._desk.limits
        full = {1: f"{limits.connections} connections are open"}
        full[2] = f"{limits.connections_per_address} connections are open from this address"
        for why, text in full.items():
            refusal = response_of(Unavailable(f"{text}, which is the limit; try again"))
            self._native.full(why, written(refusal, keep_alive=False))

    def learn(self, request: HttpRequest, call: Call, json_bytes: int | None) -> None:
        """Learn the head of a request that was read, if it can be known."""
        if json_bytes is None or not is_plain(request, call):
            return
        text = bytes(request.body[:json_bytes])
        layout = raw_layout(text, self._desk.limits, call.face)
        if layout is not None and self._is_to_learn(request.head, text):
            self._learn(request.head, text, call, layout, len(request.body), [])

    def knows(self, request: HttpRequest) -> bool:
        """Whether the thread would understand this request."""
        json_bytes = read_length(request.headers.get("inference-header-content-length", ""))
        return json_bytes is not None and (request.head, bytes(request.body[:json_bytes])) in self._heads

    # -- answers

    def _written(self, call: Call, answered: InferenceResult) -> bytes:
        return written(answer_of(call, answered))

    def _refused(self, error: SlimError) -> tuple[bytes, str]:
        response = response_of(error) if isinstance(error, RefusalError) else refused(500, str(error))
        return written(response), str(response.status)

    async def _read(self, token: int, data: bytes) -> None:
        """Answer a request as the protocol does."""
        reader = RequestReader(self._desk.limits)
        at = 0
        while at < len(data):
            end = reader.step(data, at)
            reader.feed(data[at:end])
            at = end
        response = await self._handle(reader.complete.popleft())
        self._native.answer([token], [written(response)])

    # -- connections

    def _take_notice(self, notice: "Notice") -> None:
        self._spawn(self._lend(*notice))

    async def _lend(self, file: int, arrived: bytes, unsent: bytes, address: str, _: int) -> None:
        """Let the protocol serve a connection."""
        lent = LentConnection(self, address, arrived, unsent)
        try:
            connection = socket.socket(fileno=file)
            await self._loop.connect_accepted_socket(lambda: self._connect(lent), connection)
        except OSError:  # the client has left meanwhile
            self.lost(lent)

    def returned(self, lent: LentConnection, file: int) -> None:
        """Take a connection back: the thread understands what its client sends."""
        lent.is_over = True
        self._native.adopt(file, lent.address)

    def lost(self, lent: LentConnection) -> None:
        """A connection that was lent is closed."""
        if not lent.is_over:
            lent.is_over = True
            self._native.gone(lent.address)


def answer_of(call: Call, answered: InferenceResult) -> HttpResponse:
    """Return an answer as a response."""
    body, json_bytes = write_answer(call, answered)
    if json_bytes is None:
        return HttpResponse(status=200, body=body)
    headers = {"inference-header-content-length": str(json_bytes)}
    return HttpResponse(status=200, body=body, content_type="application/octet-stream", headers=headers)


def is_plain(request: HttpRequest, call: Call) -> bool:
    """Whether the head of this request can be known: nothing of it depends on more than its bytes."""
    return (
        bool(request.head)
        and request.keep_alive
        and not request.is_old
        and len(request.head) + len(request.body) <= LARGEST_BYTES
        and request.headers.get("connection", "keep-alive").lower() == "keep-alive"
        and not any(name in request.headers for name in UNUSUAL)
        and is_plain_call(call)
    )
