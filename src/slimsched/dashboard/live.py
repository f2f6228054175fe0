"""The dashboard of a running cluster: one page, and a stream of frames that updates it."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from time import time

import msgspec

from slimsched.dashboard.page import SCRIPTS, asset
from slimsched.serving.api.http_requests import HttpResponse
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.gateway.bounds import BoundCurve, judges
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.telemetry.live_view import Frame, LiveView

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
        gateway: Gateway,
        router: str,
        *,
        now: Callable[[], float],
        phase: Callable[[], str],
        power_sources: Callable[[], str],
    ) -> None:
        self.view = LiveView(gateway, router)
        self._gateway, self._cluster = gateway, gateway.cluster
        self._now, self._phase, self._power_sources = now, phase, power_sources
        self._frames: deque[bytes] = deque(maxlen=HISTORY_FRAMES)
        self._newest, self._fresh = b"", asyncio.Event()
        self._trouble = ""
        self._is_watched = False

    @property
    def assets(self) -> dict[str, Callable[[], HttpResponse]]:
        """The files of the page, which hold no secrets."""
        respond = partial(HttpResponse, status=200, headers=_HEADERS)
        return {
            path: partial(respond, body=asset(name).encode(), content_type=kind)
            for path, (name, kind) in ASSETS.items()
        }

    @property
    def pages(self) -> dict[str, Callable[[], HttpResponse]]:
        """The stream of frames that the page shows."""
        return {"/dashboard/frames": self._stream_response}

    def frame(self) -> Frame:
        """Return the state as it is now, to somebody who looks."""
        self._is_watched = True
        return self.view.frame(self._now(), self._phase())

    async def run(self) -> None:
        """Take a frame every quarter of a second until cancelled; report a failure and carry on.

        The bound takes up to a second of a core to solve, so it is solved once somebody looks.
        """
        solving: asyncio.Task[None] | None = None
        while True:
            now = self._gateway.cluster
            if now is not self._cluster and now.active:
                self._cluster, self.view.bounds, solving = now, None, None
            if self._is_watched and solving is None:
                solving = asyncio.create_task(self._solve_bounds(self._cluster))
            self._newest = self._next_message()
            fresh, self._fresh = self._fresh, asyncio.Event()
            fresh.set()
            await asyncio.sleep(PERIOD_S)

    def _next_message(self) -> bytes:
        """Return the next message: a frame, or why there is none. A failure is logged when it starts."""
        try:
            self.view.energy_source = self._power_sources()
            now_s = self._now()
            self.view.began_unix_s = time() - now_s
            frame = msgspec.json.encode(self.view.frame(now_s, self._phase()))
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
            if trouble != self._trouble:
                log.exception("no frame for the dashboard")
            self._trouble = trouble
            return b"event: trouble\ndata: " + msgspec.json.encode(trouble) + b"\n\n"
        self._trouble = ""
        self._frames.append(frame)
        return b"data: " + frame + b"\n\n"

    async def _solve_bounds(self, cluster: Cluster) -> None:
        """Solve the fluid bounds of a cluster; if that fails, the page only lacks these figures."""
        try:
            bounds = await asyncio.to_thread(BoundCurve, cluster, sure=judges(self._gateway.router, cluster))
        except Exception:
            log.exception("no fluid bound for the dashboard")
            return
        if cluster is self._cluster:  # else its models have changed meanwhile
            self.view.bounds = bounds

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
