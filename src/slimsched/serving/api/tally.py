"""Counts of the front door: responses by code, their duration, and where examples spent their time."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.api.exposition import Histogram, family, histogram
from slimsched.serving.live.calls import Receipt

log = logging.getLogger("slim.access")

Seconds = NDArray[np.float64]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The buckets of all histograms of seconds."""

LAG_GAIN = 0.05
"""How much the last message counts in the mean lag."""


class Counted(Struct, frozen=True, kw_only=True, tag=True):
    """The counts of a process since it was last asked, as a message."""

    responses: list[tuple[str, str, str, int]]
    seconds: list[tuple[list[int], float]]
    express: int = 0
    cuts: list[tuple[str, str, int]] = []


class Tally:
    """Keeps plain counts; the text of the metrics page is written only on request."""

    def __init__(self) -> None:
        self.access_log = False
        self._responses: Counter[tuple[str, str, str]] = Counter()
        self._cuts: Counter[tuple[str, str]] = Counter()
        self._took_s = {"http": Histogram(SECONDS), "grpc": Histogram(SECONDS)}
        self.express = 0
        """Responses that were written without reading their requests in Python."""
        self.lag_s = 0.0
        """How long calls lately waited until the gateway came to them, in the mean."""
        self._queue_s, self._compute_s, self._network_s = (Histogram(SECONDS) for _ in range(3))

    def count_response(self, protocol: str, kind: str, code: str, seconds: float) -> None:
        """Count a response; `kind` is "infer" or "other"."""
        self._responses[protocol, kind, code] += 1
        if self.access_log:
            took_ms = round(1e3 * seconds, 3)
            given = {"protocol": protocol, "kind": kind, "code": code, "took_ms": took_ms}
            log.info("%s %s %s %.3f ms", protocol, kind, code, took_ms, extra=given)
        if kind == "infer":
            self._took_s[protocol].observe(seconds)

    def count_responses(self, protocol: str, kind: str, code: str, seconds: Seconds) -> None:
        """Count responses with one code."""
        if self.access_log:
            for one in seconds.tolist():
                self.count_response(protocol, kind, code, one)
            return
        self._responses[protocol, kind, code] += len(seconds)
        if kind == "infer":
            self._took_s[protocol].observe_all(seconds)

    def count_cuts(self, protocol: str, cuts: Mapping[str, int]) -> None:
        """Count clients that were turned away unheard, by reason."""
        for reason, count in cuts.items():
            self._cuts[protocol, reason] += count

    def note_lag(self, lag_s: float) -> None:
        """Note how long a call waited until the gateway came to it."""
        self.lag_s += LAG_GAIN * (lag_s - self.lag_s)

    def count_examples(self, receipts: Sequence[Receipt]) -> None:
        """Count answered examples."""
        for one in receipts:
            self._queue_s.observe(one.queue_s, one.examples)
            self._compute_s.observe(one.compute_s, one.examples)
            self._network_s.observe(max(0.0, one.latency_s - one.queue_s - one.compute_s), one.examples)

    def count_calls(self, receipt: Receipt, examples: int, network_s: Seconds) -> None:
        """Count calls on one receipt."""
        self._queue_s.observe(receipt.queue_s, examples * len(network_s))
        self._compute_s.observe(receipt.compute_s, examples * len(network_s))
        self._network_s.observe_all(network_s, examples)

    def take(self) -> "Counted":
        """Return all counts and begin again at zero: another process adds them to its own."""
        responses = [(*key, count) for key, count in self._responses.items()]
        self._responses.clear()
        express, self.express = self.express, 0
        seconds = [one.take() for one in self._histograms]
        cuts = [(*key, count) for key, count in self._cuts.items()]
        self._cuts.clear()
        return Counted(responses=responses, seconds=seconds, express=express, cuts=cuts)

    def add(self, counted: "Counted") -> None:
        """Add the counts of another process."""
        for protocol, kind, code, count in counted.responses:
            self._responses[protocol, kind, code] += count
        self.express += counted.express
        for protocol, reason, count in counted.cuts:
            self._cuts[protocol, reason] += count
        for one, (counts, total) in zip(self._histograms, counted.seconds, strict=True):
            one.add(counts, total)

    @property
    def _histograms(self) -> list[Histogram]:
        return [*self._took_s.values(), self._queue_s, self._compute_s, self._network_s]

    def lines(self) -> list[str]:
        """Return the counts in the Prometheus text format."""
        responses = [
            ({"protocol": protocol, "kind": kind, "code": code}, float(count))
            for (protocol, kind, code), count in sorted(self._responses.items())
        ]
        cuts = [
            ({"protocol": protocol, "reason": reason}, float(count))
            for (protocol, reason), count in sorted(self._cuts.items())
        ]
        took = [({"protocol": name}, one) for name, one in self._took_s.items()]
        example = "of an answered example, over all its segments."
        return [
            *family("slim_responses_total", "counter", "Responses by protocol, kind and code.", responses),
            *family(
                "slim_express_responses_total",
                "counter",
                "Of these, responses to requests with known heads, which the express line read.",
                [({}, float(self.express))],
            ),
            *family(
                "slim_turned_away_total",
                "counter",
                "Connections and calls that were turned away unheard, by the limit that they were over.",
                cuts,
            ),
            *histogram(
                "slim_infer_seconds", "Inference requests, from the complete request to the response.", took
            ),
            *family(
                "slim_gateway_lag_seconds",
                "gauge",
                "How long calls wait until the gateway comes to them; it grows when that is full.",
                [({}, self.lag_s)],
            ),
            *histogram("slim_image_queue_seconds", f"Waiting at servers {example}", [({}, self._queue_s)]),
            *histogram("slim_image_compute_seconds", f"Computing {example}", [({}, self._compute_s)]),
            *histogram("slim_image_network_seconds", f"All other time {example}", [({}, self._network_s)]),
        ]
