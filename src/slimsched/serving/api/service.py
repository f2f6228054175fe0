"""The inference service behind both protocols: admits calls within the limits, runs them, writes receipts.

`Desk` is what both protocols hand calls to, in the gateway or in a front process. The tally counts responses.
"""

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol, assert_never

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched import __version__
from slimsched.core.config import SlimError
from slimsched.serving.api.calls import Call, InferenceResult, ModelFace, find_face, write_receipt
from slimsched.serving.api.limits import (
    EXAMPLE_BYTES,
    BadRequest,
    ExecutionFailed,
    Ledger,
    Limits,
    RefusalError,
    TooLate,
    TooMany,
    Unavailable,
    fitted,
)
from slimsched.serving.api.shared_memory import SharedMemory, SharedMemoryControl
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import DropReason, Terms
from slimsched.serving.live.calls import DroppedError, Receipt
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.memory import InputArena, memory_bytes

# -- The Prometheus text format (0.0.4): writes counters, gauges and histograms as lines.

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


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


def family(name: str, kind: str, about: str, samples: Iterable[tuple[Labels, float]]) -> list[str]:
    """Return the lines of a counter or gauge. The name of a counter ends in _total."""
    return [*_head(name, kind, about), *[sample(name, value, labels) for labels, value in samples]]


def histogram(name: str, about: str, series: Iterable[tuple[Labels, Histogram]]) -> list[str]:
    """Return the lines of a histogram, with one set of buckets for each set of labels."""
    lines = _head(name, "histogram", about)
    for labels, one in series:
        lines += one.lines(name, labels)
    return lines


def sample(name: str, value: float, labels: Labels) -> str:
    """Return the line of one sample."""
    inside = ",".join(f'{key}="{_escape(word)}"' for key, word in labels.items())
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{float(value):.9g}"


def _escape(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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


class Counted(Struct, frozen=True, kw_only=True, tag=True):
    """The counts of a process since it was last asked, as a message."""

    responses: list[tuple[str, str, str, int]]
    seconds: list[tuple[list[int], float]]
    express: int = 0
    cuts: list[tuple[str, str, int]] = []


class Tally:
    """Keeps plain counts; the text of the metrics page is written only on request."""

    def __init__(self) -> None:
        self.access_log = False
        self._responses: Counter[tuple[str, str, str]] = Counter()
        self._cuts = Counter({(protocol, reason): 0 for protocol in ("http", "grpc") for reason in CUTS})
        self._took_s = {"http": Histogram(SECONDS), "grpc": Histogram(SECONDS)}
        self.express = 0
        """Responses that were written without reading their requests in Python."""
        self.lag_s = 0.0
        """How long calls lately waited until the gateway came to them, in the mean."""
        self._queue_s, self._compute_s, self._network_s = (Histogram(SECONDS) for _ in range(3))

    def count_response(self, protocol: str, kind: str, code: str, seconds: float) -> None:
        """Count a response; `kind` is "infer" or "other"."""
        self._responses[protocol, kind, code] += 1
        if self.access_log:
            took_ms = round(1e3 * seconds, 3)
            given = {"protocol": protocol, "kind": kind, "code": code, "took_ms": took_ms}
            log.info("%s %s %s %.3f ms", protocol, kind, code, took_ms, extra=given)
        if kind == "infer":
            self._took_s[protocol].observe(seconds)

    def count_responses(self, protocol: str, kind: str, code: str, seconds: Seconds) -> None:
        """Count responses with one code."""
        if self.access_log:
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

    def note_lag(self, lag_s: float) -> None:
        """Note how long a call waited until the gateway came to it."""
        self.lag_s += LAG_GAIN * (lag_s - self.lag_s)

    def count_examples(self, receipts: Sequence[Receipt]) -> None:
        """Count answered examples."""
        for one in receipts:
            self._queue_s.observe(one.queue_s, one.examples)
            self._compute_s.observe(one.compute_s, one.examples)
            self._network_s.observe(max(0.0, one.latency_s - one.queue_s - one.compute_s), one.examples)

    def count_calls(self, receipt: Receipt, examples: int, network_s: Seconds) -> None:
        """Count calls on one receipt."""
        self._queue_s.observe(receipt.queue_s, examples * len(network_s))
        self._compute_s.observe(receipt.compute_s, examples * len(network_s))
        self._network_s.observe_all(network_s, examples)

    def take(self) -> "Counted":
        """Return all counts and begin again at zero: another process adds them to its own."""
        responses = [(*key, count) for key, count in self._responses.items()]
        self._responses.clear()
        express, self.express = self.express, 0
        seconds = [one.take() for one in self._histograms]
        cuts = [(*key, count) for key, count in self._cuts.items()]
        self._cuts.clear()
        return Counted(responses=responses, seconds=seconds, express=express, cuts=cuts)

    def add(self, counted: "Counted") -> None:
        """Add the counts of another process."""
        for protocol, kind, code, count in counted.responses:
            self._responses[protocol, kind, code] += count
        self.express += counted.express
        for protocol, reason, count in counted.cuts:
            self._cuts[protocol, reason] += count
        for one, (counts, total) in zip(self._histograms, counted.seconds, strict=True):
            one.add(counts, total)

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
            *family("slim_responses_total", "counter", "Responses by protocol, kind and code.", responses),
            *family(
                "slim_express_responses_total",
                "counter",
                "Of these, responses to requests with known heads, which the express line read.",
                [({}, float(self.express))],
            ),
            *family(
                "slim_turned_away_total",
                "counter",
                "Connections and calls that were turned away unheard, by the limit that they were over.",
                cuts,
            ),
            *histogram(
                "slim_infer_seconds", "Inference requests, from the complete request to the response.", took
            ),
            *family(
                "slim_gateway_lag_seconds",
                "gauge",
                "How long calls wait until the gateway comes to them; it grows when that is full.",
                [({}, self.lag_s)],
            ),
            *histogram("slim_image_queue_seconds", f"Waiting at servers {example}", [({}, self._queue_s)]),
            *histogram("slim_image_compute_seconds", f"Computing {example}", [({}, self._compute_s)]),
            *histogram("slim_image_network_seconds", f"All other time {example}", [({}, self._network_s)]),
        ]


# -- The desk: where both protocols hand in inference calls, in the gateway or in a front process.

CLIENT_LEFT = "499"
"""The code that metrics count when a client left before its answer. It is never sent."""


class ModelsChangedError(SlimError):
    """The model of a call was replaced by another version before the call was accepted."""


class ResponseTally(Protocol):
    """Counts responses."""

    express: int

    def count_response(self, protocol: str, kind: str, code: str, seconds: float) -> None:
        """Count a response; `kind` is "infer" or "other"."""

    def count_responses(self, protocol: str, kind: str, code: str, seconds: Seconds) -> None:
        """Count responses with one code."""

    def count_cuts(self, protocol: str, cuts: Mapping[str, int]) -> None:
        """Count clients that were turned away unheard, by reason."""

    def count_examples(self, receipts: Sequence[Receipt]) -> None:
        """Count answered examples."""

    def count_calls(self, receipt: Receipt, examples: int, network_s: Seconds) -> None:
        """Count calls on one receipt."""
        ...


class Desk(Protocol):
    """Answers inference calls, or refuses them with a reason."""

    limits: Limits
    ledger: Ledger
    memory: SharedMemory

    @property
    def tally(self) -> ResponseTally:
        """The counts of responses."""
        ...

    @property
    def arena(self) -> InputArena | None:
        """Memory for large inputs that the servers can read."""
        ...

    @property
    def passes_on(self) -> bool:
        """Whether everything but inference is answered, and counted, by another process."""
        ...

    def face(self, name: str, version: str = "") -> ModelFace:
        """Find a model by name; refuse one, or a version, that this server has not."""
        ...

    async def infer(self, call: Call) -> InferenceResult:
        """Run a call; raise a refusal that says why not, or ModelsChangedError."""
        ...


FULL_LAG_S = 0.05
"""Where calls wait longer than this for the gateway, and its event loop is as late, the gateway is full."""

LONGEST_LAG_S = 2.0
"""A call that waited longer than this for the gateway is refused: the gateway is full."""


class Phase(StrEnum):
    """The state of the service: it starts, is ready, then drains."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class InferenceService:
    """Accepts calls while it is ready, answers or refuses each, and drains before it stops."""

    passes_on = False
    """It answers everything itself."""

    def __init__(
        self, cluster: LiveCluster, limits: Limits, *, row_bytes: int = 0, shared_memory: bool = False
    ) -> None:
        """`row_bytes` are the inputs of one example of the largest model that may be loaded later.

        With `shared_memory`, clients may register their own for tensors.
        """
        self.phase = Phase.STARTING
        self.tally, self.ledger = Tally(), Ledger()
        self.extensions = ["binary_tensor_data", "parameters"]
        self.extensions += ["system_shared_memory"] if shared_memory else []
        self.memory = SharedMemory(self.ledger, is_allowed=shared_memory)
        self.regions = SharedMemoryControl(self.memory, lambda: self.limits)
        self._cluster, self._limits, self._row_bytes = cluster, limits, row_bytes
        self.when_models_change: list[Callable[[], None]] = []
        self.use_models()

    def use_models(self) -> None:
        """Offer the models that the cluster serves now."""
        self.faces = [ModelFace(model) for model in self._cluster.models]
        largest = max([self._row_bytes, *(face.spec.row_bytes for face in self.faces)])
        answer = max([face.answer_bytes for face in self.faces], default=0)
        self.limits = fitted(self._limits, largest, answer, memory_bytes())
        self.ledger.proxies = self.limits.proxy_addresses
        if self.arena is not None:
            self.arena.limit_bytes = self.limits.held_bytes
        self._by_name = {face.name: face for face in self.faces}
        for tell in self.when_models_change:
            tell()

    @property
    def arena(self) -> InputArena | None:
        """Memory for large inputs that the servers can read."""
        return self._cluster.arena

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
        if self.phase is Phase.READY and min(self.tally.lag_s, self._cluster.lag_s) > FULL_LAG_S:
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
        model, arrived_s = call.face.model, self._cluster.arrived_s
        self.admit(model, call.terms, call.count, arrived_s)
        parcel = self._cluster.submit(
            call.inputs, call.terms, count=call.count, model=model.number, arrived_s=arrived_s
        )
        try:
            answered = await parcel
        except DroppedError as dropped:
            dropped.__traceback__ = None  # else parcel and error hold each other, with all inputs
            raise refusal_of(dropped) from None
        finally:
            self._cluster.cancel(parcel)
        if self._cluster.now_s > parcel.deadline_s:
            raise too_late()
        self.tally.count_examples(answered.receipts)
        parameters = write_receipt(call.face.spec, answered.receipts, model.quality.accuracy, call.terms)
        return InferenceResult(outputs=answered.outputs, parameters=parameters)

    def face(self, name: str, version: str = "") -> ModelFace:
        """Find a model by name; refuse one, or a version, that this server has not."""
        return find_face(self._by_name, name, version)

    def server_metadata(self) -> dict[str, object]:
        """Return the name, version and extensions of this server."""
        return {"name": "slim-scheduler", "version": __version__, "extensions": self.extensions}

    def model_names(self) -> list[str]:
        """Return the names of the models that can be asked now."""
        return list(self._by_name)

    def admit(
        self, model: ServedModel, terms: Terms, count: int, arrived_s: float, *, is_last_try: bool = True
    ) -> None:
        """Refuse a call that cannot be accepted now; `arrived_s` is on the cluster's clock."""
        if self.phase is not Phase.READY:
            raise Unavailable(f"the server is {self.phase}; try again shortly")
        if not self._cluster.any_alive:
            raise Unavailable(self._cluster.health.trouble)
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
        self.tally.note_lag(lag_s := self._cluster.now_s - arrived_s)
        if lag_s > LONGEST_LAG_S:
            raise TooMany(f"the gateway is {lag_s:.1f} s behind; try again", retry_after_s=lag_s)
        self._check_room(count)
        reason = self._cluster.refusal(
            terms, arrived_s, count=count, model=model.number, is_last_try=is_last_try
        )
        if reason is DropReason.QUEUE_FULL:
            raise self._queue_full(terms.priority)
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

    def _queue_full(self, priority: int) -> TooMany:
        """Return the refusal of a call that would wait too long; it may come when the work above is done."""
        wait_s, most_s = self._cluster.wait_s(priority), self.limits.queue_s
        return TooMany(
            f"the work ahead takes about {wait_s:.3g} s, {most_s:g} s are the limit; try again",
            retry_after_s=wait_s - most_s,
        )


def too_late() -> TooLate:
    """Return the refusal of an answer that came after its deadline."""
    return TooLate("deadline passed; ask for more time or less accuracy")


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
