"""Arrivals: what came in during one round of the event loop, told to the gateway together."""

from collections import Counter
from collections.abc import Callable

from slimsched.serving.domain.request import NEVER_S, DropReason, Request, Terms
from slimsched.serving.execution.live.next_round import NextRound
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import RequestsArrived, RequestsRefused


class Arrivals:
    """Collects requests, and counts those that the gateway's admission refuses before they are made.

    A refusal at the door must cost little, or refusing takes the time that answers need. So the door asks
    here first, and the gateway gets only the number of those refused.
    """

    def __init__(self, gateway: Gateway, tell: Callable[[RequestsArrived | RequestsRefused], None]) -> None:
        self._gateway, self._tell = gateway, tell
        self._requests: list[Request] = []
        self._refused: Counter[int] = Counter()  # by model
        self._round = NextRound(self._pass_on)

    def add(self, request: Request) -> None:
        """Tell the gateway of a request in the event loop's next round, together with others of this one."""
        self._round.expect()
        self._requests.append(request)

    def refusal(
        self, terms: Terms, count: int, model: int, arrived_s: float, now_s: float, is_last_try: bool
    ) -> DropReason | None:
        """Say why a call with these terms cannot be accepted; None if it can.

        It counts as refused unless another try follows.
        """
        admission = self._gateway.admission
        if admission is None:
            return None
        if terms.deadline_s >= NEVER_S:
            reason = admission.refusal_in_line(terms.priority)
        else:
            reason = admission.refusal(terms.request(0, arrived_s, model), count, now_s)
        if reason is not None and is_last_try:
            self.count_refused(model, count)
        return reason

    def count_refused(self, model: int, count: int) -> None:
        """Count examples that were refused before they became requests."""
        self._round.expect()
        self._refused[model] += count

    def wait_s(self, priority: int) -> float:
        """Return the time that the work ahead of a call without a deadline takes, as predicted."""
        admission = self._gateway.admission
        return 0.0 if admission is None else admission.wait_s(priority)

    def _pass_on(self) -> None:
        requests, self._requests = tuple(self._requests), []
        if self._refused:
            counts = tuple(self._refused[model] for model in range(max(self._refused) + 1))
            self._refused.clear()
            self._tell(RequestsRefused(counts=counts))
        if requests:
            self._tell(RequestsArrived(requests=requests))
