"""Senders that hang up in a simulated run, as clients of a live cluster do."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from msgspec import Struct

from slimsched.serving.domain.request import RequestsCancelled, ids_of
from slimsched.serving.gateway.messages import Answer, Drop
from slimsched.serving.simulated.cluster import SimulatedCluster

AGAIN_S = 1e-4
"""A request that the cluster has not taken yet is looked at again after this time."""


class Left:
    """An observer that knows which requests are answered or dropped."""

    def __init__(self) -> None:
        self.ids: set[int] = set()

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        for command in commands:
            if isinstance(command, Answer | Drop):
                self.ids.update(ids_of(command.requests))


def hang_up(monkeypatch: pytest.MonkeyPatch, share: float, after_s: float) -> None:
    """Let a share of all senders hang up some time after arrival, unless they have their answers by then."""
    make = SimulatedCluster.__init__

    def made(self: SimulatedCluster, *parts: Any, **given: Any) -> None:
        left, rng, stream = Left(), Random(5), parts[2]
        make(self, *parts, **{**given, "observers": [*given["observers"], left]})

        def cancel(number: int) -> None:
            if number >= stream._next:
                self.timeline.at(self.timeline.now_s + AGAIN_S, cancel, number)
            elif number not in left.ids:
                self._hear(RequestsCancelled(requests=(number,)))

        for number, arrival_s in enumerate(stream._arrivals_s):
            if rng.random() < share:
                self.timeline.at(arrival_s + after_s, cancel, number)

    monkeypatch.setattr(SimulatedCluster, "__init__", made)
