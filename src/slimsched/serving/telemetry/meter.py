"""The meter: follows the event log and computes a Summary.

A summary is a run as one row of figures, with the verdicts on its goal; a trace holds what pictures need.
"""

from collections import Counter
from collections.abc import Sequence
from math import nan

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.domain.cluster import GATEWAY_NAME
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import (
    OUTCOMES,
    DropReason,
    Outcome,
    Request,
    alike,
    count_examples,
    each_example,
)
from slimsched.serving.gateway.messages import (
    Answer,
    Drop,
    RequestsArrived,
    SegmentFinished,
    TelemetryReceived,
)
from slimsched.serving.telemetry.live_view import Frame, Watch
from slimsched.serving.telemetry.verdict import LimitVerdict

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
    """The figures of one run; all of them cover the time after the warm-up."""

    router: str
    accuracy: float  # counted example by example where the quality table has examples, else the prior
    accuracy_prior: float  # of the plans served, by the quality table
    latency_mean_s: float
    latency_sd_s: float
    latency_p50_s: float
    latency_p95_s: float
    latency_p99_s: float
    energy_paper_j: float  # mean power × latency, as in the paper
    energy_paper_sd_j: float
    energy_j_per_request: float  # above idle, per completed request
    energy_idle_j: float
    energy_source: str
    gpu_var: float  # variance of utilization across servers, as in the paper: mean over samples
    gpu_var_sd: float
    power_mean_w: float
    arrived: int
    completed: int
    goodput_per_s: float  # answers in time
    slo_attainment: float  # answers in time, as a share of arrivals: of all that were offered
    ended: dict[Outcome, int] = {}  # by what became of them: in time, late, refused or failed
    verdicts: tuple[LimitVerdict, ...] = ()  # on the goal of this row, in the order in which limits yield
    dropped: int
    drops: dict[str, int]  # by reason
    unfinished: int
    lost: int  # arrivals that were neither answered nor dropped nor are under way: always 0
    duplicates: int
    choices: dict[str, float]  # the share of each choice, by name, over all segments
    models: dict[str, ModelSummary] = {}  # by name, where there are several
    batch_mean: float
    device_s_per_request: float = 0.0  # the time of all batches on devices, per completed request
    seconds: float
    bound_accuracy: float  # the fluid bound of routers that do not look at examples
    bound_share: float  # correct answers per arrived request, over that bound
    sure_bound_accuracy: float = 0.0  # the bound of routers that stop when sure; 0 if this one does not judge
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
    """The figures of a run and its answers, and frames of it where they were asked for."""

    summary: Summary
    answers: AnswerArrays
    frames: Sequence[Frame] = ()


Values = NDArray[np.float64]

ANSWER = np.dtype(
    [
        *((name, np.int64) for name in ("id", "model", "plan", "example")),
        *((name, np.float64) for name in ("answered_s", "arrival_s", "deadline_s")),
        ("judged", np.bool_),
    ]
)
"""What is kept of each answer."""


class Meter:
    """Counts requests and batches from a given time on; figures are computed once, at the end.

    A request that is under way when counting begins counts when it is answered. One that is under way at the
    end does not count. In a steady state the two cancel; a router whose queues grow answers fewer requests
    than arrive.
    """

    def __init__(self, models: Sequence[ServedModel], *, from_s: float = 0.0) -> None:
        self._models = models
        self.watch: Watch | None = None
        """What judges the limits of a goal, if the run has one."""
        self._now_s = 0.0
        self._from_s = from_s
        self._on_its_way = 0  # requests under way when counting began
        self._arrived = 0
        self._arrived_of = [0] * len(models)  # arrivals of each model, where there are several
        self._drops: Counter[DropReason] = Counter()
        self._answers: list[tuple[int, int, int, int, float, float, float, bool]] = []  # as ANSWER says
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
        self._now_s = now_s
        if isinstance(event, RequestsArrived):
            self.count_arrivals(event.requests)
        elif isinstance(event, SegmentFinished):
            self.count_batch(event)
        elif isinstance(event, TelemetryReceived):
            sample = event.snapshot
            self._samples.setdefault(sample.taken_s, []).append((sample.utilization, sample.power_w))
        for command in commands:
            if isinstance(command, Answer):
                self._answer(command.requests, now_s)
            elif isinstance(command, Drop):
                self._drops[command.reason] += count_examples(command.requests)

    def count_arrivals(self, requests: tuple[Request, ...]) -> None:
        """Count requests that have arrived."""
        self._arrived += count_examples(requests)
        if len(self._models) > 1:
            for request in requests:
                self._arrived_of[request.model] += request.count

    def count_batch(self, event: SegmentFinished) -> None:
        """Count a batch, unless it ended during the warm-up."""
        if event.finished_s >= self._from_s:
            self._active_j += event.energy_j
            if self.watch is not None:
                self.watch.drew(self._now_s, event.energy_j)
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
        for one, count in alike(requests) if self.watch is not None else ():
            assert self.watch is not None
            accuracy = self._models[one.model].expected_accuracy(one.path, one.trail)
            self.watch.answered(now_s, one.model, count, now_s - one.arrival_s, accuracy)
        for request in each_example(requests):
            plan = self._models[request.model].tree.index[request.path]
            judged = request.trail is not None and request.trail.sure >= 0.0
            times_s = now_s, request.arrival_s, request.deadline_s
            self._answers.append((request.id, request.model, plan, request.example, *times_s, judged))

    def answers(self) -> AnswerArrays:
        """Return when each request was answered, how long it took, and by which plan of which model."""
        rows = np.array(self._answers, dtype=ANSWER)
        return AnswerArrays(
            answered_s=rows["answered_s"].copy(),
            latency_s=rows["answered_s"] - rows["arrival_s"],
            model=rows["model"].copy(),
            plan=rows["plan"].copy(),
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
        rows = np.array(self._answers, dtype=ANSWER)
        latency = rows["answered_s"] - rows["arrival_s"]
        completed, arrived, sd_s = len(rows), self._arrived, float(latency.std()) if len(rows) else nan
        priors, correct = self._correct(rows)
        gpu_var, gpu_var_sd, mean_w = self._sensed()
        ended, dropped = self._ended(rows), sum(self._drops.values())
        duplicates = completed - len(np.unique(rows["id"]))
        return Summary(
            router=router,
            accuracy=_mean(correct),
            accuracy_prior=_mean(priors),
            latency_mean_s=_mean(latency),
            latency_sd_s=sd_s,
            latency_p50_s=_percentile(latency, 50),
            latency_p95_s=_percentile(latency, 95),
            latency_p99_s=_percentile(latency, 99),
            energy_paper_j=mean_w * _mean(latency),
            energy_paper_sd_j=mean_w * sd_s,
            energy_j_per_request=self._active_j / completed if completed else nan,
            energy_idle_j=idle_w * seconds,
            energy_source=energy_source,
            gpu_var=gpu_var,
            gpu_var_sd=gpu_var_sd,
            power_mean_w=mean_w,
            arrived=arrived,
            completed=completed,
            goodput_per_s=ended["in_time"] / seconds,
            slo_attainment=ended["in_time"] / arrived if arrived else nan,
            ended=ended,
            verdicts=() if self.watch is None else self.watch.verdicts(self._now_s)[1],
            dropped=dropped,
            drops={str(reason): count for reason, count in self._drops.items()},
            unfinished=in_system,
            lost=self._on_its_way + arrived - completed - dropped - in_system + duplicates,
            duplicates=duplicates,
            choices=self._choice_shares(rows),
            models=self._by_model(rows, latency, priors, correct),
            device_s_per_request=self._busy_s / completed if completed else nan,
            batch_mean=self._batched / self._batches if self._batches else nan,
            seconds=seconds,
            bound_accuracy=bound_accuracy,
            bound_share=self._bound_share(rows, priors, bound_accuracy),
            sure_bound_accuracy=sure_bound_accuracy,
            sure_bound_share=self._bound_share(rows, priors, sure_bound_accuracy),
            wall_s=wall_s,
            requests_per_wall_s=arrived / wall_s if wall_s > 0 else nan,
        )

    def _sensed(self) -> tuple[float, float, float]:
        """Return the variance of utilization across servers and its deviation, and the mean power."""
        samples = self._samples.values()  # a sample is of all servers
        gpu_var = np.array([np.var([utilization for utilization, _ in row]) for row in samples])
        mean_w = _mean(np.array([np.mean([power_w for _, power_w in row]) for row in samples]))
        return _mean(gpu_var), float(gpu_var.std()) if len(gpu_var) else nan, mean_w

    def _ended(self, rows: NDArray[np.void]) -> dict[Outcome, int]:
        """Count requests by what became of them."""
        ended, in_time = dict.fromkeys(OUTCOMES, 0), int((rows["answered_s"] <= rows["deadline_s"]).sum())
        ended["in_time"], ended["late"] = in_time, len(rows) - in_time
        for reason, count in self._drops.items():
            ended[reason.outcome] += count
        return ended

    def _correct(self, rows: NDArray[np.void]) -> tuple[Values, Values]:
        """Return the prior of each answer, and whether it was correct (the prior where that is unknown).

        Of an answer that was judged the plan alone says little: its prior is whether it was correct.
        """
        priors, correct = np.zeros(len(rows)), np.zeros(len(rows))
        for model in self._models:
            its = rows["model"] == model.number
            plans = rows["plan"][its]
            priors[its] = model.scored.by_plan[plans]
            hits = model.scored.hits(plans, rows["example"][its])
            correct[its] = priors[its] if hits is None else hits
        return np.where(rows["judged"], correct, priors), correct

    def _bound_share(self, rows: NDArray[np.void], priors: Values, bound_accuracy: float) -> float:
        """Correct answers per arrived request over those of the fluid bound, by the weights of models."""
        if not self._arrived or not len(rows) or not bound_accuracy:
            return 0.0
        weights = np.array([model.weight for model in self._models])
        arrived = np.array(self._arrived_of if len(self._models) > 1 else [self._arrived])
        answered = weights[rows["model"]] * priors
        return float(answered.sum()) / (float((weights * arrived).sum()) * bound_accuracy)

    def _by_model(
        self, rows: NDArray[np.void], latency_s: Values, priors: Values, correct: Values
    ) -> dict[str, ModelSummary]:
        """Return the main figures of each model, if there are several."""
        if len(self._models) < 2 or not len(rows):
            return {}
        its = {model.name: rows["model"] == model.number for model in self._models}
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

    def _choice_shares(self, rows: NDArray[np.void]) -> dict[str, float]:
        """Return each choice's share, by name, over all segments of answered requests."""
        counts: Counter[str] = Counter()
        for model in self._models:
            for choices in model.spec.segments:
                counts.update(dict.fromkeys(choices, 0))
        served = zip(rows["model"].tolist(), rows["plan"].tolist(), strict=True)
        for (number, plan), count in Counter(served).items():
            model = self._models[number]
            for segment, choice in enumerate(model.tree.plans[plan]):
                counts[model.spec.segments[segment][choice]] += count
        total = counts.total()
        return {name: count / total if total else 0.0 for name, count in counts.items()}


def _mean(values: Values) -> float:
    return float(values.mean()) if len(values) else nan


def _percentile(values: Values, q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else nan
