"""Escalation: the gateway's part of stopping when sure.

A plan has answered and the model says how sure it is. The router judges each answer. One that is good enough
goes out; the others go on at once with a wider plan, on the server that keeps the last activation that both
plans share. The plan before has answered already, so a request whose wider plan cannot run is answered with
that.
"""

from collections.abc import Sequence
from typing import NamedTuple

from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import GATEWAY, Cluster
from slimsched.serving.domain.request import Key, Request, ids_of, onward
from slimsched.serving.routing.events import SegmentFinished
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Judge, Route, Router, Verdict


class Onward(NamedTuple):
    """Requests that go on together: where, with which key, and where their inputs lie."""

    route: Route
    key: Key
    source: int
    requests: tuple[Request, ...]


class Escalation:
    """Asks the router about each answer, and finds out where a request goes on."""

    def __init__(self, cluster: Cluster, router: Router) -> None:
        self._cluster = cluster
        self._judge = router if isinstance(router, Judge) else None
        self.models: frozenset[int] = frozenset()
        """The models whose answers are judged; none if the router judges no answers."""
        if self._judge is not None:
            self.models = frozenset(m.number for m in cluster.models if self._judge.keeps(m.number))

    def moved(self, requests: Sequence[Request], choices: Path, server: int) -> list[Request]:
        """Return requests of one model after their next segments have run on a server."""
        if requests[0].model in self.models:
            return [request.after_at(choices, server) for request in requests]
        return [request.after(choices) for request in requests]

    def sort(
        self, requests: Sequence[Request], event: SegmentFinished, seen: Observation
    ) -> tuple[list[Request], list[Onward]]:
        """Split requests whose plan is complete into those to answer, and those that go on."""
        assert self._judge is not None
        said = _said(event)
        done: list[Request] = []
        groups: dict[tuple[Key, int, int, str], list[Request]] = {}
        examples: list[Request] = []
        for request in requests:
            if request.id not in said or request.model not in self.models or request.plan >= 0:
                done.append(request)
            else:
                examples += request.each()
        for request in examples:
            confidence, top = said[request.id]
            verdict = self._judge.judge(request, confidence, top, seen)
            judged = request.judged(
                confidence=confidence,
                sure=verdict.sure,
                hope=verdict.hope,
                why=verdict.why,
                top=top,
                checked=verdict.check,
            )
            way = self._way(judged, verdict, event.server, seen) if verdict.plan >= 0 else None
            if way is None:
                done.append(judged)
            else:
                key, server, source = way
                groups.setdefault((key, server, source, verdict.why), []).append(judged.going_on(key.segment))
        onward_ = [
            Onward(Route(server, key.choice, len(members), why), key, source, tuple(members))
            for (key, server, source, why), members in groups.items()
        ]
        return done, onward_

    def _way(
        self, request: Request, verdict: Verdict, server: int, seen: Observation
    ) -> tuple[Key, int, int] | None:
        """Return what runs next, where, and where its input lies; None if that server is gone."""
        model = self._cluster.models[request.model]
        plan, kept = model.tree.plans[verdict.plan], 0
        for before, after in zip(request.path, plan, strict=False):
            if before != after:
                break
            kept += 1
        source = GATEWAY
        if kept and request.trail is not None:
            server = source = request.trail.homes[kept - 1]
        if not seen.alive[server] or kept == len(plan):
            return None
        return onward(model.key_of_path(plan[: kept + 1]), plan[kept + 1 :]), server, source


def _said(event: SegmentFinished) -> dict[int, tuple[float, int]]:
    """Return what the model said about each request's answer: how sure it is, and the class."""
    ids = [number for block in event.blocks for number in ids_of(block.requests)]
    if len(event.confidence) != len(ids):
        return {}
    tops = event.top or (-1,) * len(ids)
    return dict(zip(ids, zip(event.confidence, tops, strict=True), strict=True))
