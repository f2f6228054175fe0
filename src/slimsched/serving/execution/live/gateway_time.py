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

from slimsched.serving.domain.machine import GATEWAY_NAME
from slimsched.serving.routing.events import RequestsArrived
from slimsched.serving.routing.gateway_cost import GatewayCost, requests_in

SLICE_S = 0.1
"""How long each slice of the run is that events, requests and processor time are counted in."""

ENOUGH = 10
"""Slices that are needed to tell the cost of events from that of requests."""

ALIKE = 0.99999
"""From this cosine on, events and requests rise and fall together, and cannot be told apart."""


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
        """Fit event_s × events + request_s × requests to the slices; neither is negative.

        If the two cannot be told apart, all goes to requests.
        """
        if not self._slices:
            return GatewayCost()
        busy_s, events, requests = np.array(self._slices, dtype=np.float64).T
        if len(busy_s) >= ENOUGH and _are_apart(events, requests):
            from scipy.optimize import nnls  # imported here because it takes long

            (event_s, request_s), _ = nnls(np.column_stack([events, requests]), busy_s)
            return GatewayCost(event_s=float(event_s), request_s=float(request_s))
        return GatewayCost(request_s=float(busy_s.sum() / max(1.0, requests.sum())))


def _are_apart(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return bool(one @ other < ALIKE * np.linalg.norm(one) * np.linalg.norm(other))
