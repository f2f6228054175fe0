"""The observation: everything a router knows when it decides, besides the static Cluster."""

from collections.abc import Sequence
from math import exp, inf

import numpy as np
from numpy.typing import NDArray

from slimsched.models.spec import START, Path
from slimsched.serving.domain.cluster import ServerSnapshot
from slimsched.serving.domain.request import NEVER_S, NO_PLAN, Request, count_examples

LATENESS_S = 0.01
"""Added to times before they are compared, so that messages and scheduling steps count little."""

LATENESS_SHARE = 0.05
"""Weight of the last block in a server's lateness: it follows about the last twenty blocks."""


class Observation:
    """The head of the queue and the state of the servers; the gateway updates it in place.

    `outstanding` and `backlog_s` count what the gateway sent and has not got back. `lateness` says how much
    longer blocks took lately than their backlog and profile say. `utilization`, `power_w` and `queued` are
    the servers' last telemetry, which may be old.
    """

    def __init__(self, servers: int, models: int = 1) -> None:
        self.now_s = 0.0
        # the head: requests that could go as one block
        self.model = 0
        self.segment = 0
        self.previous = START
        self.source = -1  # where their inputs lie; -1: the gateway
        self.count = 0
        self.path: Path = ()  # the choices that the first of them has run at
        self.choices: tuple[int, ...] = ()  # the choices that may come next, narrowest first
        self.arrival_s = 0.0
        self.deadline_s = NEVER_S
        self.min_accuracy = 0.0
        self.plan = NO_PLAN  # the plan their senders stated, by number
        # the whole system
        self.plans = False  # whether to plan all remaining segments at once
        self.fifo = 0
        self.done = 0
        self.done_rate_per_s = 0.0
        self.active_w = 0.0  # energy of batches above idle, per second
        self.arrival_rate_per_s = 0.0
        self.model_rates_per_s: NDArray[np.float64] = np.zeros(models)
        self._rates_s = 0.0  # the time of the rates
        # the servers
        self.alive: NDArray[np.bool_] = np.ones(servers, dtype=bool)
        self.alive_ids: list[int] = list(range(servers))
        self.is_decided = (
            False  # whether the server is chosen already: the question is about the rest of a plan
        )
        self.penalty_s: NDArray[np.float64] = np.zeros(
            servers
        )  # infinite for servers that are down: add it to any cost
        self.outstanding: NDArray[np.float64] = np.zeros(servers)
        self.backlog_s: NDArray[np.float64] = np.zeros(servers)
        self.queued: NDArray[np.float64] = np.zeros(servers)
        self.utilization: NDArray[np.float64] = np.zeros(servers)
        self.power_w: NDArray[np.float64] = np.zeros(servers)
        self.vram_bytes: NDArray[np.float64] = np.zeros(servers)
        self.telemetry_s: NDArray[np.float64] = np.zeros(servers)
        self.lateness: NDArray[np.float64] = np.ones(servers)  # time that blocks took over time expected
        # what batches cost in service (`learned_cost.py`), per example
        self.slowdown: NDArray[np.float64] = np.ones(servers)  # factor on profiled times
        self.first_extra_s: NDArray[np.float64] = np.zeros(servers)  # what a batch's overhead adds
        self.further_extra_s: NDArray[np.float64] = np.zeros(servers)  # the same for plans after an answer

    def begin_step(self, now_s: float) -> None:
        """Bring the time and the rates up to date for a scheduling step."""
        self.now_s = now_s
        self._fade_rates(now_s)
        self._settle_rates()

    def arrived(self, requests: Sequence[Request], now_s: float) -> None:
        """Count requests in the arrival rates."""
        self._fade_rates(now_s)
        self.arrival_rate_per_s += count_examples(requests)
        if len(self.model_rates_per_s) > 1:
            for request in requests:
                self.model_rates_per_s[request.model] += request.count

    def count_arrivals(self, counts: Sequence[int], now_s: float) -> None:
        """Count requests of each model in the arrival rates."""
        self._fade_rates(now_s)
        self.arrival_rate_per_s += sum(counts)
        if len(self.model_rates_per_s) > 1:
            self.model_rates_per_s[: len(counts)] += counts

    def answered(self, count: int) -> None:
        """Count requests that were answered."""
        self.done += count
        self.done_rate_per_s += count

    def sent(self, server: int, count: int, work_s: float) -> float:
        """Count requests sent to a server, each with its work; return the server's backlog with them."""
        self.outstanding[server] += count
        backlog_s = float(self.backlog_s[server]) + work_s * count
        self.backlog_s[server] = backlog_s
        return backlog_s

    def least_backlog_s(self) -> float:
        """Return how long each server that is up has work for, at least."""
        return float(self.backlog_s[self.alive_ids].min()) if self.alive_ids else 0.0

    def came_back(self, server: int, count: int, work_s: float) -> None:
        """Count requests that a server has done."""
        self.outstanding[server] -= count
        self.backlog_s[server] = max(0.0, self.backlog_s[server] - work_s * count)

    def returned(self, server: int, took_s: float, expected_s: float) -> None:
        """Note how long a block took at a server, and how long it should have taken by profile."""
        ratio = (took_s + LATENESS_S) / (expected_s + LATENESS_S)
        self.lateness[server] += LATENESS_SHARE * (ratio - self.lateness[server])

    def _fade_rates(self, now_s: float) -> None:
        """Let past arrivals and answers count less: rates are means over about a second."""
        kept = exp(-(now_s - self._rates_s))
        self._rates_s = now_s
        self.arrival_rate_per_s *= kept
        self.done_rate_per_s *= kept
        self.active_w *= kept
        if len(self.model_rates_per_s) > 1:
            self.model_rates_per_s *= kept

    def _settle_rates(self) -> None:
        """Set the rate of a single model, which is not kept at each arrival."""
        if len(self.model_rates_per_s) == 1:
            self.model_rates_per_s[0] = self.arrival_rate_per_s

    def know_models(self, count: int) -> None:
        """Make room for models that were added."""
        self._settle_rates()
        more = count - len(self.model_rates_per_s)
        self.model_rates_per_s = np.append(self.model_rates_per_s, np.zeros(more))

    def set_alive(self, server: int, alive: bool) -> None:
        """Mark a server up or down."""
        self.alive[server] = alive
        self.penalty_s[server] = 0.0 if alive else inf
        self.alive_ids = [int(i) for i in np.flatnonzero(self.alive)]

    def note(self, server: int, snapshot: ServerSnapshot) -> None:
        """Copy what a server says about itself."""
        self.utilization[server] = snapshot.utilization
        self.power_w[server] = snapshot.power_w
        self.queued[server] = sum(snapshot.queued)
        self.vram_bytes[server] = snapshot.vram_bytes
        self.telemetry_s[server] = snapshot.taken_s

    def lose(self, server: int) -> None:
        """Mark a server down; what it had is gone."""
        self.set_alive(server, False)
        self.outstanding[server] = self.backlog_s[server] = 0.0
        self.utilization[server] = self.queued[server] = self.power_w[server] = 0.0
        self.lateness[server] = 1.0
