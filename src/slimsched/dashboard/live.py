"""The dashboard of a running cluster: one page, and a stream of frames that updates it."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable

import msgspec

from slimsched.dashboard.page import SCRIPTS, asset
from slimsched.serving.api.http_requests import HttpResponse
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.telemetry.live_view import LiveView
from slimsched.serving.telemetry.run_folder import BoundCurve

log = logging.getLogger("slim.dashboard")

PERIOD_S = 0.25
HISTORY_FRAMES = 240
"""How many past frames a page gets when it opens: the last minute."""

ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    **{f"/{name}": (name, "text/javascript; charset=utf-8") for name in SCRIPTS},
}
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


class Dashboard:
    """Takes a frame of the cluster a few times per second; `view` must be one of the cluster's observers."""

    def __init__(
        self,
        cluster: Cluster,
        router: str,
        *,
        now: Callable[[], float],
        phase: Callable[[], str],
        power_sources: Callable[[], str],
    ) -> None:
        self.view = LiveView(cluster, router)
        self._cluster, self._now, self._phase, self._power_sources = cluster, now, phase, power_sources
        self._frames: deque[bytes] = deque(maxlen=HISTORY_FRAMES)
        self._newest, self._fresh = b"", asyncio.Event()
        self._trouble = ""
        self._is_watched = False

    @property
    def assets(self) -> dict[str, Callable[[], HttpResponse]]:
        """The files of the page, which hold no secrets."""

        def get(name: str, kind: str) -> Callable[[], HttpResponse]:
            body = asset(name).encode()
            return lambda: HttpResponse(status=200, body=body, content_type=kind, headers=_HEADERS)

        return {path: get(name, kind) for path, (name, kind) in ASSETS.items()}

    @property
    def pages(self) -> dict[str, Callable[[], HttpResponse]]:
        """The stream of frames that the page shows."""
        return {"/dashboard/frames": self._stream_response}

    async def run(self) -> None:
        """Take a frame every quarter of a second until cancelled; report a failure and carry on.

        The bound takes a second of a core to solve, so it is solved once somebody looks.
        """
        solving: asyncio.Task[BoundCurve] | None = None
        while True:
            now = self.view.current() if self.view.current is not None else self._cluster
            if now is not self._cluster and now.active:
                self._cluster, self.view.bound, solving = now, None, None
            if self._is_watched and self.view.bound is None:
                solving = solving or asyncio.create_task(asyncio.to_thread(BoundCurve, self._cluster))
                if solving.done():
                    self._set_bound(solving)
            self._newest = self._next_message()
            fresh, self._fresh = self._fresh, asyncio.Event()
            fresh.set()
            await asyncio.sleep(PERIOD_S)

    def _next_message(self) -> bytes:
        """Return the next message: a frame, or why there is none. A failure is logged when it starts."""
        try:
            self.view.energy_source = self._power_sources()
            frame = msgspec.json.encode(self.view.frame(self._now(), self._phase()))
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
            if trouble != self._trouble:
                log.exception("no frame for the dashboard")
            self._trouble = trouble
            return b"event: trouble\ndata: " + msgspec.json.encode(trouble) + b"\n\n"
        self._trouble = ""
        self._frames.append(frame)
        return b"data: " + frame + b"\n\n"

    def _set_bound(self, solving: "asyncio.Task[BoundCurve]") -> None:
        """Use the solved bound; if it could not be solved, the page only lacks that figure."""
        if (error := solving.exception()) is None:
            self.view.bound = solving.result().accuracy
            self.view.sure_bound = solving.result().sure_accuracy
        else:
            log.error("no fluid bound for the dashboard", exc_info=error)
            self.view.bound = lambda rate_per_s: 0.0

    def _stream_response(self) -> HttpResponse:
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        return HttpResponse(
            status=200, content_type="text/event-stream", headers=headers, stream=self._stream()
        )

    async def _stream(self) -> AsyncIterator[bytes]:
        """Yield the last minute at once, then each new frame; a slow reader misses some."""
        self._is_watched = True
        yield b"event: history\ndata: [" + b",".join(self._frames) + b"]\n\n"
        while True:
            await self._fresh.wait()
            yield self._newest
