"""Measures a running contender: throughput at saturation, latency and goodput under load."""

import gc
import time
from collections import Counter

import numpy as np
from contender import Contender
from numpy.typing import NDArray
from setting import Setting

from slimsched.serving.api.client.load import (
    LoadGenerator,
    LoadReport,
    SentRequest,
    due_times,
    load_of,
    report,
)
from slimsched.serving.live.wire import run

Labels = NDArray[np.int64]
WARM_UP_ROUNDS = 8
SETTLE_S = 0.4
"""A pause between runs, in which requests under way can end."""


class Client:
    """The same client for all: open loop, kept-alive connections, requests prepared except for pixels."""

    def __init__(
        self, contender: Contender, setting: Setting, images: NDArray[np.uint8], labels: Labels
    ) -> None:
        self._contender, self._setting = contender, setting
        self._images, self._labels = images, labels

    def warm_up(self, terms: dict[str, float | str]) -> None:
        """Send until most requests are answered: some servers need time after they say they are ready."""
        requests = 2 * self._setting.queue
        numbers = np.zeros((requests, self._setting.images), dtype=np.int64)
        for _ in range(WARM_UP_ROUNDS):
            sent = self._send(
                terms, np.zeros(requests), numbers, connections=self._setting.batch, patience_s=5.0
            )
            outcomes = Counter(one.status for one in sent)
            if outcomes[200] > 0.5 * requests:
                return
        raise SystemExit(f"{self._contender.name} at {self._setting.width:g} does not warm up: {outcomes}")

    def saturated_per_s(self, terms: dict[str, float | str], requests: int) -> float:
        """Return the images answered per second while every worker has a batch and more are waiting."""
        numbers = np.random.default_rng(0).integers(len(self._images), size=(requests, self._setting.images))
        under_way = max(16, 3 * self._setting.workers * self._setting.batch)
        sent = self._send(terms, np.zeros(requests), numbers, connections=under_way)
        done_s = np.sort([one.done_s for one in sent if one.status == 200])
        if len(done_s) < 0.75 * requests:
            outcomes = Counter(one.status for one in sent)
            raise SystemExit(
                f"{self._contender.name} refused requests that it should accept at saturation: {outcomes}"
            )
        first, last = len(done_s) // 5, 4 * len(done_s) // 5  # the steady middle
        return (last - first) * self._setting.images / float(done_s[last] - done_s[first])

    def loaded(
        self, terms: dict[str, float | str], images_per_s: float, seconds: float, arrivals: str
    ) -> LoadReport:
        """Run open-loop arrivals at this rate and return the report."""
        rate = images_per_s / self._setting.images
        due_s, numbers = due_times(
            load_of(arrivals, rate, seconds), 1, len(self._images), self._setting.images
        )
        sent = self._send(terms, due_s, numbers, connections=512)
        return report(
            sent,
            self._labels,
            seconds=seconds,
            deadline_s=self._setting.deadline_s,
            read=self._contender.read,
        )

    def _send(
        self,
        terms: dict[str, float | str],
        due_s: NDArray[np.float64],
        numbers: NDArray[np.int64],
        connections: int,
        patience_s: float = 30.0,
    ) -> list[SentRequest]:
        url = f"http://127.0.0.1:{self._setting.port}"
        generator = LoadGenerator(
            url,
            {"images": self._images},
            self._contender.prefix(terms),
            connections=connections,
            patience_s=patience_s,
        )
        time.sleep(SETTLE_S)
        gc.collect()
        gc.disable()
        try:
            return run(generator.run(due_s, numbers))
        finally:
            gc.enable()
