"""Stopping when sure: whether a plan's answer is good enough to be sent, or a wider plan is worth its price.

A plan has answered and the model says how sure it is. The router judges each answer. One that is good enough
goes out; the others go on at once with a wider plan, on the server that keeps the last activation that both
plans share. The plan before has answered already, so a request whose wider plan cannot run is answered with
that. Confidence is trusted as far as it kept meaning what it meant when it was measured.
"""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from slimsched.core.statistics import Fading
from slimsched.models.spec import Path, common_start
from slimsched.serving.domain.cluster import GATEWAY, Cluster, Values
from slimsched.serving.domain.request import Key, Request, Trail, ids_of, onward
from slimsched.serving.gateway.goal import CostToGo
from slimsched.serving.gateway.messages import SegmentFinished
from slimsched.serving.gateway.observation import Judge, Observation, Route, Router, Verdict

EVERY, WORK_SHARE = 100, 0.02
"""At most one in this number of answers is checked, and checks take at most this share of the device time."""

LEAST_CHECKS = 20
"""No verdict before this number of checks."""

LAST_CHECK = 0.005
"""What the last check counts: about the last 200 decide."""

MARGIN, DEVIATIONS = 0.05, 3.0
"""Trust ends when agreement is below what is expected by this much, and by N standard deviations."""


class Trust:
    """Whether a model's confidence still means what it meant when it was measured.

    At most one answer in a hundred is checked before it is sent: the request goes on with the widest plan,
    and both answers are compared. How often they should agree at each level is known from the examples. If
    they agree clearly less often, the confidence is not trusted, until checks agree as they should again.
    Older checks fade.
    """

    def __init__(self) -> None:
        self.holds = True
        """Whether the confidence is trusted."""
        self.checks = 0
        """Checks since the start."""
        self._answers, self._work = 0, 0.0  # since the last check
        self._expected, self._agreed, self._variance = (Fading(share=LAST_CHECK) for _ in range(3))

    @property
    def expected(self) -> float:
        """How often recent answers should have agreed with the widest plan's."""
        return self._expected.mean if self.checks else 1.0

    @property
    def agreed(self) -> float:
        """How often recent answers agreed with the widest plan's."""
        return self._agreed.mean if self.checks else 1.0

    def is_due(self, work: float, extra: float) -> bool:
        """Whether to check an answer that took `work`, if a check takes `extra`; call once per answer."""
        self._answers += 1
        self._work += WORK_SHARE * work
        if self._answers < EVERY or self._work < extra:
            return False
        self._answers, self._work = 0, 0.0
        return True

    def note(self, expected: float, agrees: bool) -> bool:
        """Count a check; return whether trust began or ended by it."""
        self.checks += 1
        self._expected.note(expected)
        self._agreed.note(agrees)
        self._variance.note(expected * (1.0 - expected))
        missing = self.expected - self.agreed
        deviation = sqrt(max(self._variance.total, 0.25)) / self._variance.weight
        doubtful = self.checks >= LEAST_CHECKS and missing > max(MARGIN, DEVIATIONS * deviation)
        before, self.holds = self.holds, not doubtful if self.holds else missing < MARGIN / 2
        return before != self.holds


MOST_PLANS = 3
"""The most plans that a request runs."""

SURE = "sure enough for the price of a wider plan"
DISTRUST = "how sure it is cannot be trusted"
"""Why an answer is sent."""

HASTE = 2.0
"""How often a further plan must fit into the time that is left."""


class Judgement:
    """Says of each answer of one model whether it is sent, or a wider plan is worth its price.

    At the price of device time that holds on the server now, the cost to go says which plan is best after
    this plan has answered at this level. Time, energy and the number of plans limit it. Some answers are
    checked (`Trust`); while a model's confidence is not trusted, every answer is sent. `kind_of` and `full_s`
    are a server's kind and time of a widest plan.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: int,
        cost_to_go: CostToGo,
        kind_of: Sequence[int],
        full_s: Sequence[float],
    ) -> None:
        self.trust = Trust()
        self._cluster, self._model, self._cost_to_go = cluster, cluster.models[model], cost_to_go
        self._kind_of, self._full_s = kind_of, full_s
        assert cost_to_go.escalation is not None
        self._table = cost_to_go.escalation
        self._index = self._model.tree.index
        self._widest = self._index[self._model.spec.widest]
        self._work = cost_to_go.total_work.tolist()  # of each plan, by kind

    def judge(
        self,
        request: Request,
        confidence: float,
        prices: tuple[float, float],
        left_s: float,
        seen: Observation,
    ) -> Verdict:
        """Decide about an answer, at the prices of device time and of the objective.

        `left_s` is the time that is left for this request.
        """
        trail = request.trail
        assert trail is not None
        plan, server = self._index[request.path], trail.homes[-1]
        row = self._table.row.get(plan)
        if row is None:
            sure = trail.hope if trail.hope >= 0.0 else self._accuracy(plan)
            return Verdict(sure=sure, why="no wider plan is known to help")
        level = self._table.confidences.level(plan, confidence)
        right = self._table.right[row, level]
        sure = self._sure(trail, plan, float(right[plan])) if self.trust.holds else self._accuracy(plan)
        if trail.checked:
            return Verdict(sure=sure, why="checked with the widest plan")
        kind = self._kind_of[server]
        further, extra = self._cost_to_go.further(*prices).plan[kind, row], self._cost_to_go.extra[kind, row]
        verdict = self._verdict(request, trail, plan, sure, int(further[level]), right)
        if (
            verdict.plan < 0
            and plan != self._widest
            and (further != plan).any()  # it matters how sure it is
            and self.trust.is_due(self._work[kind][plan], float(extra[self._widest]))
        ):
            hope = float(right[self._widest])
            why = "a check of how sure it is"
            verdict = Verdict(plan=self._widest, sure=sure, hope=hope, why=why, check=True)
        if verdict.plan < 0:
            return verdict
        need_s = self._full_s[server] * float(seen.slowdown[server]) * float(extra[verdict.plan])
        if HASTE * need_s + float(seen.backlog_s[server]) > left_s:
            return Verdict(sure=sure, why="no time for a wider plan")
        return verdict

    def checked(self, request: Request, top: int) -> bool:
        """Compare a checked answer with the widest plan's; return whether trust began or ended by it."""
        trail = request.trail
        if trail is None or not trail.checked or request.path != self._model.spec.widest or top < 0:
            return False
        plan = self._index[trail.tried[-1]]
        level = self._table.confidences.level(plan, trail.confidence)
        return self.trust.note(float(self._table.agreed[self._table.row[plan], level]), top == trail.top)

    def _accuracy(self, plan: int) -> float:
        return float(self._model.quality.by_plan[plan])

    def _sure(self, trail: Trail, plan: int, right: float) -> float:
        """Return the chance that an answer is right, by its own level and by that of the answer before.

        Only hard examples get a further plan, so its own confidence promises too much. What was hoped for
        after the answer before is right in the mean; it is corrected by half of how much more confident than
        usual the plan is of this example.
        """
        if trail.hope < 0.0:
            return right
        before = self._index[trail.tried[-1]]
        level = self._table.confidences.level(before, trail.confidence)
        usual = self._table.usual(before, level, plan)
        return min(1.0, max(0.0, trail.hope + (right - usual) / 2))

    def _verdict(
        self, request: Request, trail: Trail, plan: int, sure: float, best: int, right: Values
    ) -> Verdict:
        if not self.trust.holds:
            return Verdict(sure=sure, why=DISTRUST)
        if best == plan:
            return Verdict(sure=sure, why=SURE)
        if len(trail.tried) + 1 >= MOST_PLANS:
            return Verdict(sure=sure, why=f"{MOST_PLANS} plans have run")
        if request.max_energy_j and self._energy_j(request, trail, best) > request.max_energy_j:
            return Verdict(sure=sure, why="the energy limit allows no wider plan")
        hope = min(1.0, sure + float(right[best] - right[plan]))
        return Verdict(
            plan=best, sure=sure, hope=hope, why="not sure enough: a wider plan is worth its price"
        )

    def _energy_j(self, request: Request, trail: Trail, plan: int) -> float:
        """Return the energy of all plans of a request and of this one, in full batches on its server."""
        profile, size = self._cluster.profiles[trail.homes[-1]], self._cluster.batch_limit
        energy_j = 0.0
        before: Path = ()
        for one in (*trail.tried, request.path, self._model.tree.plans[plan]):
            legs = self._model.legs(one)[common_start(before, one) :]
            energy_j += sum(profile.energy_j(key, size) / size for key in legs)
            before = one
        return energy_j


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
        self._judge = judge = router if isinstance(router, Judge) else None
        self.models = frozenset(m.number for m in cluster.models if judge and judge.keeps(m.number))
        """The models whose answers are judged; none if the router judges no answers."""

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
        return done, [
            Onward(Route(server, key.choice, len(members), why), key, source, tuple(members))
            for (key, server, source, why), members in groups.items()
        ]

    def _way(
        self, request: Request, verdict: Verdict, server: int, seen: Observation
    ) -> tuple[Key, int, int] | None:
        """Return what runs next, where, and where its input lies; None if that server is gone."""
        model = self._cluster.models[request.model]
        plan = model.tree.plans[verdict.plan]
        kept, source = common_start(request.path, plan), GATEWAY
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
