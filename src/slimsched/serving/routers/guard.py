"""The guard around a router that follows a goal: it uses a fallback router when something goes wrong.

The fallback decides in three cases: an input is outside the range of training, the router's answer is not a
possible route, or queues keep growing although it could still choose narrower. In shadow mode the fallback
always decides and the router is only compared with it. Each route says who decided and why.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from slimsched.models.spec import Path
from slimsched.serving.domain.request import Request
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.observation import AnswerListener, Judge, Observation, Route, Router, Verdict

CHECK_S = 0.25
"""Time between two checks of the queues."""

RUNAWAY_S = 0.5
"""Mean backlog per server above which growth counts as running away."""

RUNAWAY_LOOKS = 8
"""After this many checks in a row with growing queues the fallback decides until they are short again."""

SERVERS_TRAINED = (1, 4096)


class Guarded(Router, AnswerListener, Protocol):
    """A router that a guard can watch: such as `goal`, or `ppo` that sees the head."""

    @property
    def goal(self) -> Goal:
        """The goal that it follows."""

    @property
    def saturated(self) -> bool:
        """Whether it could not choose narrower to make queues shorter."""

    def knows(self, model: int, path: Path) -> bool:
        """Whether some plan of a model begins with this path."""

    def with_goal(self, goal: Goal) -> "Guarded":
        """Return the same router with another goal."""


class GuardedRouter:
    """Asks a router, returns its route or the fallback's, and counts which.

    `counts` holds the number of decisions since the start, by reason. "learned": the router's route was
    taken. "out of range", "no such route", "queues grow": the fallback's route was taken, for this reason.
    "shadow: same" and "shadow: other": in shadow mode, whether the router would have chosen the same server
    and choice. A reason that never occurred has no entry.
    """

    def __init__(self, router: Guarded, fallback: Router, *, shadow: bool = False) -> None:
        self.router = router
        self._judge = router if isinstance(router, Judge) else None
        self.fallback = fallback
        self.shadow = shadow
        self.counts: Counter[str] = Counter()
        self._looked_s = 0.0
        self._backlog_s = 0.0
        self._growing = 0
        self._running_away = False
        self._now_s = -1.0
        self._in_range = True

    def route(self, seen: Observation) -> Route | None:
        """Return the router's route if all is well, else the fallback's."""
        if seen.now_s - self._looked_s >= CHECK_S:
            self._look(seen)
        if seen.now_s != self._now_s:  # once per scheduling step
            total = float(seen.backlog_s.sum()) + seen.arrival_rate_per_s
            least, most = SERVERS_TRAINED
            self._now_s, self._in_range = seen.now_s, 0.0 <= total < 1e12 and least <= len(seen.alive) <= most
        why = None if self._in_range else "out of range"
        if self._in_range and self._running_away:
            why = "queues grow"
        route = None if why == "out of range" else self.router.route(seen)
        if route is not None:
            path = (*seen.path, route.choice, *route.ahead)
            if not (seen.alive[route.server] and route.group >= 1 and self.router.knows(seen.model, path)):
                why = "no such route"
        if self.shadow:
            return self._watch(route, seen)
        if why is None:
            self.counts["learned"] += 1
            return route
        self.counts[why] += 1
        answer = self.fallback.route(seen)
        return answer and Route(answer.server, answer.choice, answer.group, f"guard: {why}")

    def with_goal(self, goal: Goal) -> "GuardedRouter":
        """Return the same guard with another goal; gains and fallback stay."""
        return GuardedRouter(self.router.with_goal(goal), self.fallback, shadow=self.shadow)

    def answered(self, requests: Sequence[Request], now_s: float) -> None:
        """Pass answers on to the router."""
        self.router.answered(requests, now_s)

    def keeps(self, model: int) -> bool:
        """Whether the router judges answers of this model; in shadow mode it decides nothing."""
        return not self.shadow and self._judge is not None and self._judge.keeps(model)

    def judge(self, request: Request, confidence: float, top: int, seen: Observation) -> Verdict:
        """Let the router judge."""
        assert self._judge is not None
        return self._judge.judge(request, confidence, top, seen)

    def _watch(self, route: Route | None, seen: Observation) -> Route | None:
        """Decide by the fallback, and compare the router's route with it (shadow mode)."""
        answer = self.fallback.route(seen)
        if answer is None or route is None:
            self.counts["shadow: other"] += 1
            return answer
        same = (route.server, route.choice) == (answer.server, answer.choice)
        self.counts["shadow: same" if same else "shadow: other"] += 1
        reason = f"shadow: the router would take server {route.server} at choice {route.choice}"
        return Route(answer.server, answer.choice, answer.group, reason)

    def _look(self, seen: Observation) -> None:
        """Check whether long queues keep growing although the router could still choose narrower."""
        alive = len(seen.alive_ids) or 1
        backlog_s = float(seen.backlog_s.sum()) / alive
        grew = backlog_s > max(RUNAWAY_S, self._backlog_s) and not self.router.saturated
        self._growing = self._growing + 1 if grew else 0
        if self._growing >= RUNAWAY_LOOKS:
            self._running_away = True
        elif backlog_s < 0.5 * RUNAWAY_S:
            self._running_away = False
        self._looked_s, self._backlog_s = seen.now_s, backlog_s


def goal_of(router: Router) -> Goal | None:
    """Return the goal that a router follows; None if it follows none."""
    return router.router.goal if isinstance(router, GuardedRouter) else None
