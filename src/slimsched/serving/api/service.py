"""The inference service behind both protocols: admits calls within the limits, runs them, writes receipts.

Both protocols hand calls to a `CallHandler`, in the gateway or in a front process. The tally counts
responses.
"""

import logging
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from time import monotonic, time
from typing import TYPE_CHECKING, ClassVar, assert_never

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched import __version__
from slimsched.core.config import ConfigError, SlimError
from slimsched.core.statistics import follow
from slimsched.serving.api.calls import Call, InferenceResult, InputMemory, Loan, ModelApi, result_of
from slimsched.serving.api.limits import (
    EXAMPLE_BYTES,
    BadRequest,
    ExecutionFailed,
    Limits,
    RefusalError,
    TooLate,
    TooMany,
    Unavailable,
    fitted,
)
from slimsched.serving.api.shared_memory import SharedMemoryControl
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import DropReason, Terms
from slimsched.serving.gateway.goal import check_measured
from slimsched.serving.live.calls import DroppedError, Receipt
from slimsched.serving.live.memory import InputArena, memory_bytes

if TYPE_CHECKING:
    from slimsched.serving.live.cluster import LiveCluster

# -- The Prometheus text format (0.0.4): writes counters, gauges and histograms as lines.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

OPEN_METRICS = "application/openmetrics-text"
Labels = Mapping[str, str]
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Histogram:
    """A histogram with fixed buckets; observing a value takes one bisection."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, once or several times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += times * value

    def observe_all(self, values: NDArray[np.float64], times: int = 1) -> None:
        """Count many values, each once or several times."""
        counts = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
        self._counts = [own + times * more for own, more in zip(self._counts, counts.tolist(), strict=True)]
        self._sum += times * float(values.sum())

    def take(self) -> tuple[list[int], float]:
        """Return the count of each bucket and the sum, and begin again at zero."""
        taken = self._counts, self._sum
        self._counts, self._sum = [0] * len(self._counts), 0.0
        return taken

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add what another histogram with the same buckets has counted."""
        self._counts = [own + other for own, other in zip(self._counts, counts, strict=True)]
        self._sum += total

    def lines(self, name: str, labels: Labels) -> list[str]:
        """Return the lines of the cumulative buckets, the sum and the count."""
        buckets, below = [], 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            below += count
            edge = "+Inf" if bound == float("inf") else f"{bound:g}"
            buckets.append(sample(f"{name}_bucket", below, {**labels, "le": edge}))
        return [*buckets, sample(f"{name}_sum", self._sum, labels), sample(f"{name}_count", below, labels)]


def family(name: str, about: str, samples: float | Iterable[tuple[Labels, float]]) -> list[str]:
    """Return the lines of a counter, whose name ends in _total, or of a gauge; one number has no labels."""
    kind = "counter" if name.endswith("_total") else "gauge"
    rows = samples if isinstance(samples, Iterable) else [({}, samples)]
    return [*_head(name, kind, about), *[sample(name, value, labels) for labels, value in rows]]


def histogram(name: str, about: str, series: Histogram | Iterable[tuple[Labels, Histogram]]) -> list[str]:
    """Return the lines of a histogram, with one set of buckets for each set of labels, or without labels."""
    lines = _head(name, "histogram", about)
    for labels, one in [({}, series)] if isinstance(series, Histogram) else series:
        lines += one.lines(name, labels)
    return lines


def sample(name: str, value: float, labels: Labels) -> str:
    """Return the line of one sample."""
    inside = ",".join(f'{key}="{word.translate(_ESCAPES)}"' for key, word in labels.items())
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def open_metrics(text: str) -> str:
    """Write a page as OpenMetrics 1.0: counters are named without _total, edges have a point, and it ends."""
    named = re.sub(r"^(# (?:HELP|TYPE) \S+)_total ", r"\1 ", text, flags=re.MULTILINE)
    return re.sub(r'(\ble="\d+)"', r'\1.0"', named) + "# EOF\n"


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{float(value):.9g}"


# -- Counts of the front door: responses by code, their duration, and where examples spent their time.

log = logging.getLogger("slim.access")

Seconds = NDArray[np.float64]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The buckets of all histograms of seconds."""

LAG_GAIN = 0.05
"""How much the last message counts in the mean lag."""


CUTS = {
    "connections": "new connections: too many are open (--limit connections, connections_per_address)",
    "resets": "connections whose clients took back too many calls (--limit resets_per_s)",
    "frames": "connections that sent frames without a use, or no HTTP/2",
    "unsent": "calls whose messages did not come, for others (--limit calls)",
    "heads": "calls or connections with headers that are too long or repeated",
    "bytes": "calls: too many bytes of requests are here (--limit held_bytes)",
}
"""Why a thread turns clients away unheard, in the order of `Cut` in `express_mailbox.hpp`."""


class ModelCounts(Struct):
    """Calls to one version of a model: how many, how long they took, and the batches that servers ran."""

    calls: int = 0
    failed: int = 0
    examples: int = 0
    took_s: float = 0.0
    failed_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0
    last_ms: int = 0
    batches: dict[int, tuple[int, float]] = {}  # how many there were of each size, and their device time

    def add(self, more: "ModelCounts") -> None:
        """Add what another process has counted; it counts no batches."""
        for name in ("calls", "failed", "examples", "took_s", "failed_s", "queue_s", "compute_s"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.last_ms = max(self.last_ms, more.last_ms)

    def described(self) -> dict[str, object]:
        """Return the counts as Triton's statistics extension has them; a call counts once, however large.

        Copying inputs and outputs is part of what servers compute; what is left of a call's time is the way.
        """
        calls = self.calls
        steps = ("compute_input", "compute_infer", "compute_output")
        of = {"success": (calls, self.took_s), "queue": (calls, self.queue_s)}
        of |= dict(zip(steps, ((calls, seconds) for seconds in (0.0, self.compute_s, 0.0)), strict=True))
        of |= {"fail": (self.failed, self.failed_s), "cache_hit": (0, 0.0), "cache_miss": (0, 0.0)}
        batches = sorted(self.batches.items())
        return {
            "last_inference": self.last_ms,
            "inference_count": self.examples,
            "execution_count": sum(count for _, (count, _) in batches),
            "inference_stats": {name: _duration(*one) for name, one in of.items()},
            "batch_stats": [
                {"batch_size": size}
                | {name: _duration(count, seconds * (name == steps[1])) for name in steps}
                for size, (count, seconds) in batches
            ],
        }


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(1e9 * seconds)}


class Counted(Struct, frozen=True, kw_only=True, tag=True):
    """The counts of a process since it was last asked, as a message."""

    responses: list[tuple[str, str, str, int]]
    seconds: list[tuple[list[int], float]]
    express: int = 0
    cuts: list[tuple[str, str, int]] = []
    models: list[tuple[str, str, ModelCounts]] = []


class Tally:
    """Keeps plain counts; the text of the metrics page is written only on request."""

    def __init__(self, *, access_log: bool = False) -> None:
        self._access_log = access_log
        self._responses: Counter[tuple[str, str, str]] = Counter()
        self._cuts = Counter({(protocol, reason): 0 for protocol in ("http", "grpc") for reason in CUTS})
        self._took_s = {"http": Histogram(SECONDS), "grpc": Histogram(SECONDS)}
        self.express = 0
        """Responses that were written without reading their requests in Python."""
        self.lag_s = follow(0.0, LAG_GAIN)
        """How long calls lately waited until the gateway came to them."""
        self._queue_s, self._compute_s, self._network_s = (Histogram(SECONDS) for _ in range(3))
        self._models: defaultdict[tuple[str, str], ModelCounts] = defaultdict(ModelCounts)

    def model(self, name: str, version: str) -> ModelCounts:
        """Return what was counted of a version of a model."""
        return self._models[name, version]

    def count_response(self, protocol: str, kind: str, code: str, seconds: float) -> None:
        """Count a response; `kind` is "infer" or "other"."""
        self._responses[protocol, kind, code] += 1
        if self._access_log:
            took_ms = round(1e3 * seconds, 3)
            given = {"protocol": protocol, "kind": kind, "code": code, "took_ms": took_ms}
            log.info("%s %s %s %.3f ms", protocol, kind, code, took_ms, extra=given)
        if kind == "infer":
            self._took_s[protocol].observe(seconds)

    def count_responses(self, protocol: str, kind: str, code: str, seconds: Seconds) -> None:
        """Count responses with one code."""
        if self._access_log:
            for one in seconds.tolist():
                self.count_response(protocol, kind, code, one)
            return
        self._responses[protocol, kind, code] += len(seconds)
        if kind == "infer":
            self._took_s[protocol].observe_all(seconds)

    def count_cuts(self, protocol: str, cuts: Mapping[str, int]) -> None:
        """Count clients that were turned away unheard, by reason."""
        for reason, count in cuts.items():
            self._cuts[protocol, reason] += count

    def count_call(self, api: ModelApi, receipts: Sequence[Receipt]) -> None:
        """Count an answered call, and its examples."""
        queue_s = compute_s = network_s = 0.0
        for one in receipts:
            way_s = max(0.0, one.latency_s - one.queue_s - one.compute_s)
            self._queue_s.observe(one.queue_s, one.examples)
            self._compute_s.observe(one.compute_s, one.examples)
            self._network_s.observe(way_s, one.examples)
            queue_s += one.examples * one.queue_s
            compute_s += one.examples * one.compute_s
            network_s += one.examples * way_s
        count = sum([one.examples for one in receipts])
        self._count(api, 1, count, queue_s / count, compute_s / count, network_s / count)

    def count_calls(self, api: ModelApi, receipt: Receipt, examples: int, network_s: Seconds) -> None:
        """Count calls on one receipt, with this many examples each."""
        calls = len(network_s)
        self._queue_s.observe(receipt.queue_s, examples * calls)
        self._compute_s.observe(receipt.compute_s, examples * calls)
        self._network_s.observe_all(network_s, examples)
        own_s = calls * receipt.queue_s, calls * receipt.compute_s
        self._count(api, calls, calls * examples, *own_s, float(network_s.sum()))

    def _count(
        self, api: ModelApi, calls: int, examples: int, queue_s: float, compute_s: float, network_s: float
    ) -> None:
        """Count answered calls to a model, with what they took together."""
        of = self._models[api.name, api.version]
        of.calls += calls
        of.examples += examples
        of.queue_s += queue_s
        of.compute_s += compute_s
        of.took_s += queue_s + compute_s + network_s
        of.last_ms = int(1e3 * time())

    def count_failed(self, api: ModelApi, took_s: Sequence[float]) -> None:
        """Count calls to a model that were refused, or failed."""
        of = self._models[api.name, api.version]
        of.failed += len(took_s)
        of.failed_s += sum(took_s)

    def take(self) -> "Counted":
        """Return all counts and begin again at zero: another process adds them to its own."""
        responses = [(*key, count) for key, count in self._responses.items()]
        self._responses.clear()
        express, self.express = self.express, 0
        seconds = [one.take() for one in self._histograms]
        cuts = [(*key, count) for key, count in self._cuts.items()]
        self._cuts.clear()
        models = [(*key, counts) for key, counts in self._models.items()]
        self._models.clear()
        return Counted(responses=responses, seconds=seconds, express=express, cuts=cuts, models=models)

    def add(self, counted: "Counted") -> None:
        """Add the counts of another process."""
        for protocol, kind, code, count in counted.responses:
            self._responses[protocol, kind, code] += count
        self.express += counted.express
        for protocol, reason, count in counted.cuts:
            self._cuts[protocol, reason] += count
        for one, (counts, total) in zip(self._histograms, counted.seconds, strict=True):
            one.add(counts, total)
        for name, version, of in counted.models:
            self._models[name, version].add(of)

    @property
    def _histograms(self) -> list[Histogram]:
        return [*self._took_s.values(), self._queue_s, self._compute_s, self._network_s]

    def lines(self) -> list[str]:
        """Return the counts in the Prometheus text format."""
        responses = [
            ({"protocol": protocol, "kind": kind, "code": code}, float(count))
            for (protocol, kind, code), count in sorted(self._responses.items())
        ]
        cuts = [
            ({"protocol": protocol, "reason": reason}, float(count))
            for (protocol, reason), count in sorted(self._cuts.items())
        ]
        took = [({"protocol": name}, one) for name, one in self._took_s.items()]
        example = "of an answered example, over all its segments."
        return [
            *family("slim_responses_total", "Responses by protocol, kind and code.", responses),
            *family(
                "slim_express_responses_total",
                "Of these, responses to requests with known heads, which the express line read.",
                float(self.express),
            ),
            *family(
                "slim_turned_away_total",
                "Connections and calls that were turned away unheard, by the limit that they were over.",
                cuts,
            ),
            *histogram(
                "slim_infer_seconds", "Inference requests, from the complete request to the response.", took
            ),
            *family(
                "slim_gateway_lag_seconds",
                "How long calls wait until the gateway comes to them; it grows when that is full.",
                self.lag_s.mean,
            ),
            *histogram("slim_image_queue_seconds", f"Waiting at servers {example}", self._queue_s),
            *histogram("slim_image_compute_seconds", f"Computing {example}", self._compute_s),
            *histogram("slim_image_network_seconds", f"All other time {example}", self._network_s),
        ]


# -- The call handler: where both protocols hand in inference calls, in the gateway or in a front process.

CLIENT_LEFT = "499"
"""The code that metrics count when a client left before its answer. It is never sent."""


class ModelsChangedError(SlimError):
    """The model of a call was replaced by another version before the call was accepted."""


class CallHandler(InputMemory, ABC):
    """Answers inference calls, or refuses them with a reason."""

    passes_on: ClassVar[bool]
    """Whether everything but inference is answered, and counted, by another process."""

    def __init__(self, arena: InputArena | None, tally: Tally, *, shared_memory: bool) -> None:
        super().__init__(arena, shared_memory=shared_memory)
        self.tally = tally

    @abstractmethod
    async def infer(self, call: Call) -> InferenceResult:
        """Run a call; raise a refusal that says why not, or ModelsChangedError."""


async def run_call(
    handler: CallHandler, read: Callable[[CallHandler, Loan], Call]
) -> tuple[Call, InferenceResult]:
    """Read a call and run it; read it again for the new model if its model was replaced meanwhile."""
    while True:
        with Loan(handler) as loan:
            call, began_s = read(handler, loan), monotonic()
            try:
                return call, await handler.infer(call)
            except ModelsChangedError:
                continue
            except RefusalError:
                handler.tally.count_failed(call.api, [monotonic() - began_s])
                raise


FULL_LAG_S = 0.05
"""Where calls wait longer than this for the gateway, and its event loop is as late, the gateway is full."""

LONGEST_LAG_S = 2.0
"""A call that waited longer than this for the gateway is refused: the gateway is full."""


class Phase(StrEnum):
    """The state of the service: it starts, is ready, then drains."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class InferenceService(CallHandler):
    """Accepts calls while it is ready, answers or refuses each, and drains before it stops."""

    passes_on = False
    """It answers everything itself."""

    def __init__(
        self,
        cluster: "LiveCluster",
        limits: Limits,
        *,
        tally: Tally | None = None,
        row_bytes: int = 0,
        shared_memory: bool = False,
        extensions: Sequence[str] = (),
        models_changed: Callable[[], None] = lambda: None,
        announce: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`row_bytes` are the inputs of one example of the largest model that may be loaded later.

        With `shared_memory`, clients may register their own for tensors; `announce` tells other processes of
        it. `models_changed` is called when other models are offered than before.
        """
        super().__init__(cluster.arena, tally or Tally(), shared_memory=shared_memory)
        self.phase = Phase.STARTING
        self.extensions = ["binary_tensor_data", "classification", "model_configuration"]
        self.extensions += ["parameters", "statistics"]
        self.extensions += ["system_shared_memory"] if shared_memory else []
        self.extensions += extensions
        self.regions = SharedMemoryControl(self.memory, lambda: self.limits, announce)
        self._cluster, self._limits, self._row_bytes = cluster, limits, row_bytes
        self._models_changed = models_changed
        self._read_models()

    def use_models(self) -> None:
        """Offer the models that the cluster serves now."""
        self._read_models()
        self._models_changed()

    def _read_models(self) -> None:
        models = self._cluster.models
        largest = max([self._row_bytes, *(model.spec.row_bytes for model in models)])
        answer = max([ModelApi(model).answer_bytes for model in models], default=0)
        self.offer(models, fitted(self._limits, largest, answer, memory_bytes()))

    async def start(self) -> None:
        """Start the servers and wait until they are warm; the service is ready afterwards."""
        await self._cluster.start()
        self.phase = Phase.READY

    async def drain(self) -> None:
        """Refuse new calls, answer the accepted ones as far as time allows, and stop the servers."""
        self.phase = Phase.DRAINING
        await self._cluster.stop(limit_s=self.limits.drain_s)

    @property
    def is_ready(self) -> bool:
        """Whether the service accepts a call now."""
        return self.phase is Phase.READY and self._cluster.any_alive

    @property
    def state(self) -> str:
        """The phase, or that the gateway is full."""
        if self.phase is Phase.READY and min(self.tally.lag_s.mean, self._cluster.lag_s) > FULL_LAG_S:
            return "gateway full"
        return str(self.phase)

    def health(self) -> dict[str, object]:
        """Return whether calls are accepted and the state of each server; refuse if they are not."""
        health = self._cluster.health
        if self.phase is not Phase.READY:
            raise Unavailable(f"the server is {self.phase}")
        if health.trouble:
            raise Unavailable(health.trouble)
        return {"ready": True, "servers": health.servers}

    async def infer(self, call: Call) -> InferenceResult:
        """Run a call, or raise a refusal that says why not."""
        model, arrived_s = call.api.model, self._cluster.now_s - self._cluster.lag_s
        try:
            self.admit(model, call.terms, call.count, arrived_s)
        except RefusalError as refusal:
            self.count_refused(refusal, model.number, call.count)
            raise
        open_call = self._cluster.submit(
            call.inputs, call.terms, count=call.count, model=model.number, arrived_s=arrived_s
        )
        try:
            answered = await open_call
        except DroppedError as dropped:
            dropped.__traceback__ = None  # else call and error hold each other, with all inputs
            raise refusal_of(dropped) from None
        finally:
            self._cluster.cancel(open_call.bundle)
        if self._cluster.now_s > open_call.bundle.deadline_s:
            raise refusal_of(DroppedError(DropReason.DEADLINE_PASSED))
        self.tally.count_call(call.api, answered.receipts)
        return result_of(call, answered)

    def statistics(self, name: str = "", version: str = "") -> dict[str, object]:
        """Return the statistics of a model, or of all that are served, since the start."""
        apis = [self.api(name, version)] if name else self.apis.values()
        named = [(api.name, api.version) for api in apis]
        told = [{"name": one[0], "version": one[1], **self.tally.model(*one).described()} for one in named]
        return {"model_stats": told}

    def count_refused(self, refusal: RefusalError, model: int, examples: int) -> None:
        """Count examples that were offered and refused, unless their call was wrong."""
        if self.phase is Phase.READY and not isinstance(refusal, BadRequest):
            self._cluster.count_refused(model, examples)

    def server_metadata(self) -> dict[str, object]:
        """Return the name, version and extensions of this server."""
        return {"name": "slim-scheduler", "version": __version__, "extensions": self.extensions}

    def admit(self, model: ServedModel, terms: Terms, count: int, arrived_s: float) -> None:
        """Refuse a call that cannot be accepted now; `arrived_s` is on the cluster's clock."""
        if self.phase is not Phase.READY:
            raise Unavailable(f"the server is {self.phase}; try again shortly")
        if not self._cluster.any_alive:
            raise Unavailable(self._cluster.health.trouble)
        try:
            check_measured(model, terms.min_accuracy)
        except ConfigError as error:
            raise BadRequest(f"parameter min_accuracy: {error}") from None
        best = model.quality.best_reachable(()) if terms.min_accuracy else 1.0
        if terms.min_accuracy > best:
            raise BadRequest(
                f"parameter min_accuracy asks for {100 * terms.min_accuracy:.2f} %, but the best plan "
                f"reaches {100 * best:.2f} %; ask for less"
            )
        least_j = self._cluster.least_energy_j(model.number) if terms.max_energy_j else 0.0
        if terms.max_energy_j < least_j:
            raise BadRequest(
                f"parameter max_energy_mj asks for at most {1e3 * terms.max_energy_j:g} mJ, but the cheapest "
                f"plan takes {1e3 * least_j:.3g} mJ per example in a full batch; ask for more"
            )
        self.tally.lag_s.note(lag_s := self._cluster.now_s - arrived_s)
        if lag_s > LONGEST_LAG_S:
            raise TooMany(f"the gateway is {lag_s:.1f} s behind; try again", retry_after_s=lag_s)
        self._check_room(count)
        reason = self._cluster.refusal(terms, arrived_s, count=count, model=model.number)
        if reason is DropReason.QUEUE_FULL:
            wait_s, most_s = self._cluster.wait_s(terms.priority), self.limits.queue_s
            why = f"the work ahead takes about {wait_s:.3g} s, {most_s:g} s are the limit; try again"
            raise TooMany(why, retry_after_s=wait_s - most_s)
        if reason is not None:
            raise refusal_of(DroppedError(reason))

    def _check_room(self, count: int) -> None:
        """Refuse examples beyond the number that was set, or beyond what the gateway may hold."""
        under_way, most = self._cluster.in_system, self.limits.examples_in_system
        if 0 < most < under_way + count:
            raise TooMany(
                f"{under_way} examples are under way, {most} are the limit; try again", retry_after_s=1.0
            )
        if (under_way + count) * EXAMPLE_BYTES > self.limits.held_bytes:
            raise Unavailable(f"{under_way} examples are under way, more cannot be held; try again")


def refusal_of(dropped: DroppedError) -> RefusalError:
    """Turn the reason of a drop into a refusal with the right code."""
    match dropped.reason:
        case DropReason.DEADLINE_PASSED | DropReason.DEADLINE_OUT_OF_REACH:
            return TooLate(f"{dropped}; ask for more time or less accuracy")
        case DropReason.EXECUTION_FAILED:
            return ExecutionFailed(str(dropped))
        case DropReason.QUEUE_FULL | DropReason.OVERLOADED | DropReason.CANCELLED:
            return TooMany(f"{dropped}; try again shortly", retry_after_s=1.0)
        case DropReason.NO_SERVER | DropReason.SHUTTING_DOWN:
            return Unavailable(str(dropped))
        case _:
            assert_never(dropped.reason)
