"""A stream of requests: their arrival times and what each asks for."""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from slimsched.serving.domain.request import NEVER_S, NO_PLAN, Request


class RequestStream:
    """Hands out requests in order of arrival as time passes."""

    def __init__(
        self,
        arrivals_s: NDArray[np.float64],
        *,
        examples: NDArray[np.int64],
        models: NDArray[np.int64] | None = None,
        deadline_s: float = NEVER_S,
        min_accuracy: float = 0.0,
        plans: Sequence[int] = (NO_PLAN,),
        priorities: NDArray[np.int64] | None = None,
        impatient: NDArray[np.bool_] | None = None,
        cancel_after_s: float = inf,
    ) -> None:
        self._arrivals_s: list[float] = arrivals_s.tolist()
        self._examples: list[int] = examples.tolist()
        self._models: list[int] | None = None if models is None else models.tolist()
        self._priorities: list[int] | None = None if priorities is None else priorities.tolist()
        self._deadline_s = deadline_s
        self._min_accuracy = min_accuracy
        self._plans = plans
        self._impatient: list[bool] | None = None if impatient is None else impatient.tolist()
        self.is_impatient = impatient is not None
        """Whether any sender hangs up."""
        self.cancel_after_s = cancel_after_s
        """When senders that do not wait hang up, counted from arrival."""
        self._next = 0

    def __len__(self) -> int:
        return len(self._arrivals_s)

    def after(self, at_s: float) -> int:
        """Return how many requests arrive at this time or later."""
        return len(self._arrivals_s) - bisect_left(self._arrivals_s, at_s)

    def next_s(self) -> float:
        """Return when the next request arrives; infinity after the last."""
        return self._arrivals_s[self._next] if self._next < len(self._arrivals_s) else inf

    def take_one(self) -> tuple[Request, ...]:
        """Take only the next request."""
        self._next += 1
        return (self._make(self._next - 1),)

    def take_until(self, until_s: float) -> tuple[Request, ...]:
        """Take all requests that arrive up to this time."""
        first = end = self._next
        arrivals_s, count = self._arrivals_s, len(self._arrivals_s)
        while end < count and arrivals_s[end] <= until_s:
            end += 1
        self._next = end
        return tuple([self._make(index) for index in range(first, end)])

    def impatient(self, requests: tuple[Request, ...]) -> list[Request]:
        """Those of these requests whose senders hang up if they are not answered in time."""
        marks = self._impatient or ()
        return [request for request in requests if marks[request.id]]

    def _make(self, index: int) -> Request:
        arrival_s = self._arrivals_s[index]
        model = 0 if self._models is None else self._models[index]
        return Request(
            id=index,
            arrival_s=arrival_s,
            deadline_s=arrival_s + self._deadline_s,
            min_accuracy=self._min_accuracy,
            plan=self._plans[model],
            model=model,
            priority=0 if self._priorities is None else self._priorities[index],
            example=self._examples[index],
        )
