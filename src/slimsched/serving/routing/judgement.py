"""Judgement: whether an answer is good enough to be sent, or a wider plan is worth its price.

At the price of device time that holds on the server now, the cost to go says which plan is best after this
plan has answered at this level. Time, energy and the number of plans limit it. Some answers are checked
(`trust.py`); while a model's confidence is not trusted, every answer is sent.
"""

from collections.abc import Sequence

from slimsched.models.spec import Path
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.request import Request, Trail
from slimsched.serving.routing.cost_to_go import CostToGo, Values
from slimsched.serving.routing.observation import Observation
from slimsched.serving.routing.router import Verdict
from slimsched.serving.routing.trust import Trust

MOST_PLANS = 3
"""The most plans that a request runs."""

SURE = "sure enough for the price of a wider plan"
DISTRUST = "how sure it is cannot be trusted"
"""Why an answer is sent."""

HASTE = 2.0
"""How often a further plan must fit into the time that is left."""


class Judgement:
    """Judges answers of one model; `kind_of` and `full_s` are a server's kind and time of a widest plan."""

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

        Who goes on is hard to answer, so the own level alone promises too much: by as much as the plan is
        surer of such examples in the mean than it is right there. What the answer before let hope is right in
        the mean, so the own level only says by how much this example is easier than others like it.
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
            kept = next((k for k, (a, b) in enumerate(zip(before, one, strict=False)) if a != b), len(before))
            energy_j += sum(profile.energy_j(key, size) / size for key in self._model.legs(one)[kept:])
            before = one
        return energy_j
