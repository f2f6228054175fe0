"""Measures what a live gateway's own work costs, by observing a run: processor time per event and request.

The gateway handles events, sends blocks and takes answers apart in one thread, so the processor time of that
thread is what the gateway costs. In `slim validate` the thread also makes the requests, in place of reading
them over HTTP.
"""

from collections.abc import Callable, Sequence
from time import thread_time

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import GATEWAY_NAME
from slimsched.serving.gateway.messages import GatewayCost, RequestsArrived, requests_in

Values = NDArray[np.float64]

SLICE_S = 0.1
"""How long each slice of the run is that events, requests and processor time are counted in."""

USUAL_RATIO = 0.2
"""What a request costs, over what an event costs: 16 and 77 µs on a Xeon where both could be told apart."""

LEANING = 0.1
"""How much the usual ratio counts, as a share of the slices."""


class GatewayTime:
    """Counts the gateway's events, requests and processor time in each slice of a run.

    It must observe in the gateway's thread, and `clock` reads that thread's processor time. Counting begins
    with the first request, so what it takes to start servers does not count.
    """

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        self._clock = clock
        self._slices: list[tuple[float, int, int]] = []  # processor time, events, requests
        self._is_on = False
        self._events = self._requests = 0
        self._began_s = self._end_s = 0.0

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Count an event; at the end of a slice, read the clock."""
        if machine != GATEWAY_NAME:
            return
        if self._is_on:
            self._events += 1
            self._requests += requests_in(event)
            if now_s < self._end_s:
                return
            self._slices.append((self._clock() - self._began_s, self._events, self._requests))
        elif not isinstance(event, RequestsArrived):
            return
        self._is_on, self._events, self._requests = True, 0, 0
        self._began_s, self._end_s = self._clock(), now_s + SLICE_S

    def cost(self) -> GatewayCost:
        """Fit what an event and a request cost to the slices."""
        if not self._slices:
            return GatewayCost()
        return fit_cost(*np.array(self._slices, dtype=np.float64).T)


def fit_cost(busy_s: Values, events: Values, requests: Values) -> GatewayCost:
    """Fit event_s × events + request_s × requests to the time that slices of a run took; neither is negative.

    Where most events have one request, the two can hardly be told apart. So the fit leans towards a usual
    ratio of the two, and more slices that differ count more than it.
    """
    from scipy.optimize import nnls  # imported here because it takes long

    counts = np.column_stack([events, requests])
    usual = np.array([1.0, USUAL_RATIO])
    usual *= busy_s.sum() / max(1.0, (counts @ usual).sum())
    weights = LEANING * np.diag(np.linalg.norm(counts, axis=0))
    (event_s, request_s), _ = nnls(np.vstack([counts, weights]), np.append(busy_s, weights @ usual))
    return GatewayCost(event_s=float(event_s), request_s=float(request_s))
