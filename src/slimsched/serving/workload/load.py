"""A load: how many requests arrive, when, and what they ask for."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from math import inf
from pathlib import Path

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray

from slimsched.core.config import (
    ConfigError,
    Deadline,
    Finite,
    Rate,
    RunSeconds,
    Seconds,
    Share,
    convert,
)
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import NEVER_S, NO_PLAN, Request
from slimsched.serving.workload.arrivals import arrivals, check_load, read_request_trace, read_shape


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
    ) -> None:
        none = np.zeros(len(arrivals_s), dtype=np.int64)
        self._arrivals_s: list[float] = arrivals_s.tolist()
        self._examples: list[int] = examples.tolist()
        self._models: list[int] = (none if models is None else models).tolist()
        self._priorities: list[int] = (none if priorities is None else priorities).tolist()
        self._deadline_s, self._min_accuracy, self._plans = deadline_s, min_accuracy, plans
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

    def _make(self, index: int) -> Request:
        arrival_s, model = self._arrivals_s[index], self._models[index]
        return Request(
            id=index,
            arrival_s=arrival_s,
            deadline_s=arrival_s + self._deadline_s,
            min_accuracy=self._min_accuracy,
            plan=self._plans[model],
            model=model,
            priority=self._priorities[index],
            example=self._examples[index],
        )


class Load(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a load; `arrivals` names a process (`ARRIVALS` lists them) or is a path of a trace.

    A trace is rescaled to `rate_per_s`, unless it is to be played `as_recorded`: then the rate is its own.
    """

    rate_per_s: Rate  # mean requests per second
    seconds: RunSeconds  # length of the run
    warmup_s: Seconds = 0.0  # the start of a run that its figures leave out
    arrivals: str = "poisson"  # a process by name, or the path of a trace
    as_recorded: bool = False  # play a trace from its start, at its own rate
    shape: dict[str, Finite] = {}  # shape of the process; see the arrival formats
    deadline_s: Deadline = NEVER_S  # time until an answer is due
    min_accuracy: Share = 0.0  # accuracy that every request asks for
    plan: str = ""  # the plan that every request states; empty lets the router choose
    urgent_share: Share = 0.0  # share of requests with priority 1; the others have 0

    def check(self) -> None:
        """Refuse settings that make no sense, before a run starts; those changed in code as well."""
        convert(to_builtins(self), Load, "load")
        check_load(self.rate_per_s, self.seconds)
        if not self.is_trace:
            read_shape(self.arrivals, self.shape)
        if not 0.0 <= self.warmup_s < self.seconds:
            raise ConfigError(
                f"warmup_s is {self.warmup_s:g} in a run of {self.seconds:g} s; leave time to measure"
            )

    @property
    def is_trace(self) -> bool:
        """Whether `arrivals` is the path of a trace."""
        return is_trace(self.arrivals)

    def arrivals_s(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw when requests arrive."""
        if self.is_trace:
            trace = read_request_trace(Path(self.arrivals))
            if self.as_recorded:
                return trace.recorded(self.seconds, rng)
            return trace.rescaled(self.rate_per_s, self.seconds, rng)
        return arrivals(self.arrivals, self.rate_per_s, self.seconds, rng, **self.shape)

    def replaying(self, path: str, seconds: float | None) -> "Load":
        """Return the load with a trace as it was recorded: all of it, or its first `seconds`."""
        trace = read_request_trace(Path(path))
        length_s = trace.seconds if seconds is None else min(seconds, trace.seconds)
        return replace(
            self, arrivals=path, shape={}, as_recorded=True, rate_per_s=trace.rate_per_s, seconds=length_s
        )

    @property
    def description(self) -> str:
        """Say in words when requests arrive, and what was done to a trace."""
        if not self.is_trace:
            return f"{self.arrivals} arrivals, {self.rate_per_s:,g} per second for {self.seconds:g} s"
        trace = read_request_trace(Path(self.arrivals))
        cut = f"; {trace.silence_s:,.0f} s of silence cut out" if trace.silence_s else ""
        whole = f"{trace.requests:,} requests in {trace.seconds:,.4g} s"
        if self.as_recorded:
            part = "" if self.seconds >= trace.seconds else f", its first {self.seconds:g} s"
            return f"trace {trace.name} as recorded ({whole}){part}{cut}"
        return (
            f"trace {trace.name} ({whole}) rescaled from {trace.rate_per_s:,.4g} to {self.rate_per_s:,g} "
            f"requests per second, {self.seconds:g} s from a random start{cut}"
        )

    def stream(
        self,
        seed: int,
        models: Sequence[ServedModel],
        *,
        shares: Sequence[float] = (),
        sizes: Sequence[int] = (),
    ) -> RequestStream:
        """Draw the requests.

        Models are drawn by their shares of the requests. Examples are drawn uniformly from those that each
        model is scored on, or from sets of these `sizes`: of a set as large as the one that the model was
        measured on, again only those that it is scored on.
        """
        rng = np.random.default_rng(seed)
        times_s = self.arrivals_s(rng)
        count = len(times_s)
        sets = []
        for one, size in zip(models, sizes or repeat(None), strict=bool(sizes)):
            scored = one.scored
            sets.append(scored.among if size is None or size == scored.examples else np.arange(size))
        sizes = [len(one) for one in sets]
        example = rng.integers(max(1, sizes[0]), size=count) if sizes[0] else np.full(count, -1)
        urgent = rng.uniform(size=count) < self.urgent_share
        model = None
        if len(models) > 1:
            model = rng.choice(len(models), size=count, p=shares or None)
            drawn = rng.uniform(size=count)
            example = np.where(model == 0, example, np.floor(drawn * np.array(sizes)[model]).astype(np.int64))
            example = np.where(np.array(sizes)[model] > 0, example, -1)
        for number, its in enumerate(sets):
            drawn_here = example >= 0 if model is None else (model == number) & (example >= 0)
            example[drawn_here] = its[example[drawn_here]]
        return RequestStream(
            times_s,
            examples=example,
            models=model,
            deadline_s=self.deadline_s,
            min_accuracy=self.min_accuracy,
            plans=[one.tree.index[one.spec.path(self.plan)] if self.plan else NO_PLAN for one in models],
            priorities=urgent.astype(np.int64) if self.urgent_share > 0 else None,
        )


def is_trace(arrivals: str) -> bool:
    """Whether a load's arrivals are the path of a trace and not the name of a process."""
    return "/" in arrivals or "." in arrivals
