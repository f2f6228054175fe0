"""The dashboard of a running cluster: one page, and a stream of frames that keeps it moving."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

import msgspec

from slimsched.api.http_protocol import HttpResponse
from slimsched.dashboard.page import asset
from slimsched.domain.cluster import Cluster
from slimsched.telemetry.bound_curve import BoundCurve
from slimsched.telemetry.live_view import LiveView

PERIOD_S = 0.25
REMEMBERED = 240
"""Frames a page gets when it opens: the last minute."""

ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/event_log.js": ("event_log.js", "text/javascript; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


class Dashboard:
    """Looks at the cluster a few times a second; `view` must be among its observers."""

    def __init__(
        self, cluster: Cluster, router: str, *, now: Callable[[], float], phase: Callable[[], str]
    ) -> None:
        self.view = LiveView(cluster, router)
        self._cluster, self._now, self._phase = cluster, now, phase
        self._frames: deque[bytes] = deque(maxlen=REMEMBERED)
        self._fresh = asyncio.Event()

    @property
    def assets(self) -> dict[str, Callable[[], HttpResponse]]:
        """The page itself, which holds no secrets."""

        def get(name: str, kind: str) -> Callable[[], HttpResponse]:
            body = asset(name).encode()
            return lambda: HttpResponse(status=200, body=body, content_type=kind, headers=_HEADERS)

        return {path: get(name, kind) for path, (name, kind) in ASSETS.items()}

    @property
    def pages(self) -> dict[str, Callable[[], HttpResponse]]:
        """What the page shows: the stream of frames."""
        return {"/dashboard/frames": self._stream_response}

    async def run(self) -> None:
        """Take a frame every quarter of a second until cancelled."""
        solving = asyncio.create_task(asyncio.to_thread(BoundCurve, self._cluster))
        while True:
            if self.view.bound is None and solving.done():
                self.view.bound = solving.result().accuracy
            frame = self.view.frame(self._now(), self._phase())
            self._frames.append(msgspec.json.encode(frame))
            fresh, self._fresh = self._fresh, asyncio.Event()
            fresh.set()
            await asyncio.sleep(PERIOD_S)

    def _stream_response(self) -> HttpResponse:
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        return HttpResponse(
            status=200, content_type="text/event-stream", headers=headers, stream=self._stream()
        )

    async def _stream(self) -> AsyncIterator[bytes]:
        """The last minute at once, then each new frame; a slow reader misses some."""
        yield b"event: history\ndata: [" + b",".join(self._frames) + b"]\n\n"
        while True:
            await self._fresh.wait()
            yield b"data: " + self._frames[-1] + b"\n\n"
