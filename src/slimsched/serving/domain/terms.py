"""What a sender asks for besides the answer."""

from msgspec import Struct

from slimsched.serving.domain.request import NEVER_S, NO_PLAN, Request


class Terms(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The deadline counts from arrival; 0 means no floor or ceiling, NO_PLAN lets the router choose."""

    deadline_s: float = NEVER_S
    priority: int = 0
    min_accuracy: float = 0.0
    max_energy_j: float = 0.0
    plan: int = NO_PLAN

    def request(
        self, number: int, now_s: float, model: int = 0, *, example: int = -1, count: int = 1
    ) -> Request:
        """Make a request of `count` examples on these terms, which arrives now."""
        return Request(
            id=number,
            arrival_s=now_s,
            deadline_s=min(NEVER_S, now_s + self.deadline_s),
            min_accuracy=self.min_accuracy,
            priority=self.priority,
            example=example,
            plan=self.plan,
            max_energy_j=self.max_energy_j,
            model=model,
            count=count,
        )


ANY_TERMS = Terms()
