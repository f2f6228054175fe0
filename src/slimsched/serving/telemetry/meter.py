"""The meter: follows the event log and computes a Summary.

A summary is a run as one row of figures; a trace holds what pictures need; a goal is checked against either.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import nan

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import GATEWAY_NAME
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Request, count_examples, each_example
from slimsched.serving.gateway.goal import Goal
from slimsched.serving.gateway.messages import (
    Answer,
    Drop,
    RequestsArrived,
    SegmentFinished,
    TelemetryReceived,
)

# -- A summary: one run as a row of figures, which `slim compare` prints for each router.


class ModelSummary(Struct, frozen=True, kw_only=True):
    """The main figures of one model in a run that served several."""

    completed: int
    accuracy: float
    accuracy_prior: float
    latency_mean_s: float
    latency_p95_s: float
    latency_p99_s: float


class Summary(Struct, frozen=True, kw_only=True):
    """The figures of one run.

    All figures cover the time after the warm-up. `accuracy` is counted example by example where the quality
    table has examples; otherwise it is the prior of the plans served. `bound_share` is the number of correct
    answers per arrived request, divided by that of the fluid bound, which holds for routers that do not look
    at examples. `sure_bound_accuracy` and `sure_bound_share` are the same beside the bound of routers that
    stop when sure; they are 0 where the router does not judge answers. `energy_paper_j` is mean power ×
    latency, as in the paper. `energy_j_per_request` is the energy above idle per completed request, and
    `device_s_per_request` the time of all batches on devices per completed request.
    """

    router: str
    accuracy: float
    accuracy_prior: float
    latency_mean_s: float
    latency_sd_s: float
    latency_p50_s: float
    latency_p95_s: float
    latency_p99_s: float
    energy_paper_j: float
    energy_paper_sd_j: float
    energy_j_per_request: float
    energy_idle_j: float
    energy_source: str
    gpu_var: float
    gpu_var_sd: float
    power_mean_w: float
    arrived: int
    completed: int
    goodput_per_s: float
    slo_attainment: float
    dropped: int
    drops: dict[str, int]
    unfinished: int
    lost: int
    duplicates: int
    choices: dict[str, float]
    models: dict[str, ModelSummary] = {}
    batch_mean: float
    device_s_per_request: float = 0.0
    seconds: float
    bound_accuracy: float
    bound_share: float
    sure_bound_accuracy: float = 0.0
    sure_bound_share: float = 0.0
    wall_s: float
    requests_per_wall_s: float


# -- A trace: the results of a run, for tables and pictures.


class AnswerArrays(Struct, frozen=True, kw_only=True):
    """For each answer: when it was given, how long it took, and by which plan of which model."""

    answered_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    model: NDArray[np.int64]
    plan: NDArray[np.int64]


class Trace(Struct, frozen=True, kw_only=True):
    """The figures of a run and its answers."""

    summary: Summary
    answers: AnswerArrays


# -- Whether a run kept a goal: each limit beside the figure that it reached.

SLACK, ACCURACY_SLACK = 0.01, 0.001
"""A limit counts as kept within 1 % of it, a floor within 0.1 points: routers aim at the limit itself."""


class LimitCheck(Struct, frozen=True, kw_only=True):
    """One limit of a goal, what the run reached, and whether that keeps the limit."""

    clause: str
    reached: str
    kept: bool
    model: str = ""


def check_goal(goal: Goal, row: Summary) -> list[LimitCheck]:
    """Hold a run against every limit of a goal, in the order in which limits yield."""
    checks: list[LimitCheck] = []
    figures: dict[str, Summary | ModelSummary] = {**row.models} if row.models else {"": row}
    for model, its in figures.items():
        checks += [*_accuracy(goal.of(model), its, model), *_latency(goal.of(model), its, model)]
    energy = _energy(goal, row)
    order = ("accuracy", "energy", "power")
    return sorted([*checks, *energy], key=lambda one: _place(one.clause, order))


def missed(goal: Goal, row: Summary) -> list[LimitCheck]:
    """Return the limits that a run did not keep."""
    return [check for check in check_goal(goal, row) if not check.kept]


def _place(clause: str, order: tuple[str, ...]) -> int:
    return next((at for at, name in enumerate(order) if clause.startswith(name)), len(order))


def _accuracy(goal: Goal, its: Summary | ModelSummary, model: str) -> Iterator[LimitCheck]:
    if goal.min_accuracy:
        yield LimitCheck(
            clause=f"accuracy>={100 * goal.min_accuracy:g}",
            reached=f"{100 * its.accuracy_prior:.2f} %",
            kept=its.accuracy_prior >= goal.min_accuracy - ACCURACY_SLACK,
            model=model,
        )


def _latency(goal: Goal, its: Summary | ModelSummary, model: str) -> Iterator[LimitCheck]:
    reached = {"p99": its.latency_p99_s, "p95": its.latency_p95_s, "mean": its.latency_mean_s}
    for limit in goal.latency_limits:
        value_s = reached[limit.figure]
        kept = value_s <= (1 + SLACK) * limit.limit_s
        yield LimitCheck(clause=limit.text, reached=f"{1e3 * value_s:.3g} ms", kept=kept, model=model)


def _energy(goal: Goal, row: Summary) -> Iterator[LimitCheck]:
    """Energy is known for the whole run: with several models, the mean over all of them is checked."""
    if goal.energy_j:
        yield LimitCheck(
            clause=f"energy<={1e3 * goal.energy_j:g}mJ",
            reached=f"{1e3 * row.energy_j_per_request:.3g} mJ",
            kept=row.energy_j_per_request <= (1 + SLACK) * goal.energy_j,
        )
    if goal.power_w:
        power_w = (row.energy_idle_j + row.energy_j_per_request * row.completed) / row.seconds
        kept = power_w <= (1 + SLACK) * goal.power_w
        yield LimitCheck(clause=f"power<={goal.power_w:g}W", reached=f"{power_w:.4g} W", kept=kept)


Values = NDArray[np.float64]


class Meter:
    """Counts requests and batches from a given time on; figures are computed once, at the end.

    A request that is under way when counting begins counts when it is answered. One that is under way at the
    end does not count. In a steady state the two cancel; a router whose queues grow answers fewer requests
    than arrive.
    """

    def __init__(self, models: Sequence[ServedModel], *, from_s: float = 0.0) -> None:
        self._models = models
        self._from_s = from_s
        self._on_its_way = 0  # requests under way when counting began
        self._arrived = 0
        self._arrived_of = [0] * len(models)  # arrivals of each model, where there are several
        self._drops: Counter[str] = Counter()
        self._ids: list[int] = []
        self._answered_s: list[float] = []
        self._arrival_s: list[float] = []
        self._deadline_s: list[float] = []
        self._model: list[int] = []
        self._plan: list[int] = []
        self._example: list[int] = []
        self._judged: list[bool] = []
        self._active_j = 0.0
        self._busy_s = 0.0
        self._batches = 0
        self._batched = 0
        self._samples: dict[float, list[tuple[float, float]]] = {}

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        """Process one entry of the log."""
        if machine != GATEWAY_NAME:
            return
        if now_s < self._from_s:
            self._warm_up(event, commands)
            return
        if isinstance(event, RequestsArrived):
            self.came(event.requests)
        elif isinstance(event, SegmentFinished):
            self.ran(event)
        elif isinstance(event, TelemetryReceived):
            sample = event.snapshot
            self._samples.setdefault(sample.taken_s, []).append((sample.utilization, sample.power_w))
        for command in commands:
            if isinstance(command, Answer):
                self._answer(command.requests, now_s)
            elif isinstance(command, Drop):
                self._drops[command.reason] += count_examples(command.requests)

    def came(self, requests: tuple[Request, ...]) -> None:
        """Count requests that have arrived."""
        self._arrived += count_examples(requests)
        if len(self._models) > 1:
            for request in requests:
                self._arrived_of[request.model] += request.count

    def ran(self, event: SegmentFinished) -> None:
        """Count a batch, unless it ended during the warm-up."""
        if event.finished_s >= self._from_s:
            self._active_j += event.energy_j
            self._busy_s += event.busy_s
            self._batches += 1
            self._batched += event.size

    def _warm_up(self, event: Struct, commands: Sequence[Struct]) -> None:
        """During the warm-up, only track how many requests are under way."""
        if isinstance(event, RequestsArrived):
            self._on_its_way += count_examples(event.requests)
        for command in commands:
            if isinstance(command, Answer | Drop):
                self._on_its_way -= count_examples(command.requests)

    def _answer(self, requests: tuple[Request, ...], now_s: float) -> None:
        for request in each_example(requests):
            self._ids.append(request.id)
            self._answered_s.append(now_s)
            self._arrival_s.append(request.arrival_s)
            self._deadline_s.append(request.deadline_s)
            self._model.append(request.model)
            self._plan.append(self._models[request.model].tree.index[request.path])
            self._example.append(request.example)
            self._judged.append(request.trail is not None and request.trail.sure >= 0.0)

    def latencies_s(self) -> Values:
        """Return the latency of every answered request, in the order of answers."""
        return np.subtract(self._answered_s, self._arrival_s, dtype=np.float64)

    def answers(self) -> AnswerArrays:
        """Return when each request was answered, how long it took, and by which plan of which model."""
        return AnswerArrays(
            answered_s=np.array(self._answered_s),
            latency_s=self.latencies_s(),
            model=np.array(self._model, dtype=np.int64),
            plan=np.array(self._plan, dtype=np.int64),
        )

    def summary(
        self,
        *,
        router: str,
        seconds: float,
        in_system: int,
        bound_accuracy: float,
        sure_bound_accuracy: float = 0.0,
        wall_s: float,
        idle_w: float,
        energy_source: str,
    ) -> Summary:
        """Return the figures of the run so far."""
        latency = self.latencies_s()
        completed, arrived = len(latency), self._arrived
        priors, correct = self._correct()
        on_time = int((np.array(self._answered_s) <= np.array(self._deadline_s)).sum())
        dropped = sum(self._drops.values())
        utilization, power_w = self._utilization(), self._power_w()
        mean_w = float(np.mean(power_w)) if power_w else nan
        duplicates = completed - len(set(self._ids))
        return Summary(
            router=router,
            accuracy=_mean(correct),
            accuracy_prior=_mean(priors),
            latency_mean_s=_mean(latency),
            latency_sd_s=float(latency.std()) if completed else nan,
            latency_p50_s=_percentile(latency, 50),
            latency_p95_s=_percentile(latency, 95),
            latency_p99_s=_percentile(latency, 99),
            energy_paper_j=mean_w * _mean(latency),
            energy_paper_sd_j=mean_w * float(latency.std()) if completed else nan,
            energy_j_per_request=self._active_j / completed if completed else nan,
            energy_idle_j=idle_w * seconds,
            energy_source=energy_source,
            gpu_var=float(np.mean(utilization)) if utilization else nan,
            gpu_var_sd=float(np.std(utilization)) if utilization else nan,
            power_mean_w=mean_w,
            arrived=arrived,
            completed=completed,
            goodput_per_s=on_time / seconds,
            slo_attainment=on_time / arrived if arrived else nan,
            dropped=dropped,
            drops=dict(self._drops),
            unfinished=in_system,
            lost=self._on_its_way + arrived - completed - dropped - in_system + duplicates,
            duplicates=duplicates,
            choices=self._choice_shares(),
            models=self._by_model(latency, priors, correct),
            device_s_per_request=self._busy_s / completed if completed else nan,
            batch_mean=self._batched / self._batches if self._batches else nan,
            seconds=seconds,
            bound_accuracy=bound_accuracy,
            bound_share=self._bound_share(priors, bound_accuracy),
            sure_bound_accuracy=sure_bound_accuracy,
            sure_bound_share=self._bound_share(priors, sure_bound_accuracy) if sure_bound_accuracy else 0.0,
            wall_s=wall_s,
            requests_per_wall_s=arrived / wall_s if wall_s > 0 else nan,
        )

    def _correct(self) -> tuple[Values, Values]:
        """Return the prior of each answer, and whether it was correct (the prior where that is unknown).

        Of an answer that was judged the plan alone says little: its prior is whether it was correct.
        """
        columns = (self._model, self._plan, self._example)
        models, plans, examples = (np.array(column, dtype=np.int64) for column in columns)
        priors, correct = np.zeros(len(plans)), np.zeros(len(plans))
        for model in self._models:
            its = models == model.number
            priors[its] = model.scored.by_plan[plans[its]]
            hits = model.scored.hits(plans[its], examples[its])
            correct[its] = priors[its] if hits is None else hits
        judged = np.array(self._judged, dtype=bool)
        return np.where(judged, correct, priors), correct

    def _bound_share(self, priors: Values, bound_accuracy: float) -> float:
        """Correct answers per arrived request over those of the fluid bound, by the weights of models."""
        if not self._arrived or not self._plan:
            return 0.0
        weights = np.array([model.weight for model in self._models])
        arrived = np.array(self._arrived_of if len(self._models) > 1 else [self._arrived])
        answered = weights[np.array(self._model)] * priors
        return float(answered.sum()) / (float((weights * arrived).sum()) * bound_accuracy)

    def _by_model(self, latency_s: Values, priors: Values, correct: Values) -> dict[str, ModelSummary]:
        """Return the main figures of each model, if there are several."""
        if len(self._models) < 2 or not self._plan:
            return {}
        numbers = np.array(self._model)
        its = {model.name: numbers == model.number for model in self._models}
        return {
            name: ModelSummary(
                completed=int(mask.sum()),
                accuracy=_mean(correct[mask]),
                accuracy_prior=_mean(priors[mask]),
                latency_mean_s=_mean(latency_s[mask]),
                latency_p95_s=_percentile(latency_s[mask], 95),
                latency_p99_s=_percentile(latency_s[mask], 99),
            )
            for name, mask in its.items()
        }

    def _utilization(self) -> list[float]:
        """Return the variance of utilization across servers, for each sample."""
        return [float(np.var([u for u, _ in row])) for row in self._samples.values()]

    def _power_w(self) -> list[float]:
        """Return the mean power across servers, for each sample."""
        return [float(np.mean([p for _, p in row])) for row in self._samples.values()]

    def _choice_shares(self) -> dict[str, float]:
        """Return each choice's share, by name, over all segments of answered requests."""
        counts: Counter[str] = Counter()
        for model in self._models:
            for choices in model.spec.segments:
                counts.update(dict.fromkeys(choices, 0))
        for (number, plan), count in Counter(zip(self._model, self._plan, strict=True)).items():
            model = self._models[number]
            for segment, choice in enumerate(model.tree.plans[plan]):
                counts[model.spec.segments[segment][choice]] += count
        total = counts.total()
        return {name: count / total if total else 0.0 for name, count in counts.items()}


def _mean(values: Values) -> float:
    return float(values.mean()) if len(values) else nan


def _percentile(values: Values, q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else nan
