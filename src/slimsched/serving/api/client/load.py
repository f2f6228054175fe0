"""An open-loop load generator: each request leaves when it is due, whether or not earlier ones were answered.

Latency counts from the time a request was due, not from the time it was sent. A stall of the server or of the
generator therefore counts for every request that had to wait (this corrects for coordinated omission). The
report also says how late requests really left.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from math import nan
from pathlib import Path
from time import monotonic
from typing import Any, cast
from urllib.parse import urlsplit

import httptools
import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import ConfigError, SlimError
from slimsched.core.plots import COLOURS, pyplot
from slimsched.models.spec import DEFAULT_MODEL
from slimsched.serving.api.client.client import (
    ServerAnswer,
    classes_of,
    read_answer,
    read_error,
    server_at,
    write_request,
)
from slimsched.serving.api.limits import TooLate, TooMany, Unavailable
from slimsched.serving.domain.request import OUTCOMES, DropReason, Outcome
from slimsched.serving.telemetry.verdict import LimitVerdict
from slimsched.serving.workload.load import Load

# -- A small HTTP/1.1 client for the load generator: a pool of kept-alive connections.

LOST = 0
"""The status of an exchange whose connection broke before the answer."""


class Reply(Struct, frozen=True):
    """A response as received; `json_bytes` is the length of its JSON if raw tensors follow."""

    status: int
    body: bytes
    json_bytes: int | None


class _Connection(asyncio.Protocol):
    """One connection, which carries one exchange at a time."""

    def __init__(self, pool: "HttpPool") -> None:
        self._pool = pool
        self._exchange: SentRequest | None = None
        self._json_bytes: int | None = None
        self._begin()

    def ask(self, exchange: "SentRequest") -> None:
        """Send a request."""
        self._exchange = exchange
        self._transport.write(exchange.request())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the open connection."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Report the exchange under way as lost, whichever side closed the connection."""
        self._pool.lost(self)
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.replied(Reply(LOST, str(error or "closed by the server").encode(), None))

    def data_received(self, data: bytes) -> None:
        """Feed bytes of a response to the parser."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the length of the JSON; no other header matters."""
        if name.lower() == b"inference-header-content-length":
            self._json_bytes = int(value)

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Hand the complete reply over, and free or close the connection."""
        exchange, self._exchange = self._exchange, None
        reply = Reply(self._parser.get_status_code(), b"".join(self._body), self._json_bytes)
        keep = self._parser.should_keep_alive()
        self._begin()
        if keep:
            self._pool.free(self)
        else:
            self._transport.close()
        if exchange is not None:
            exchange.replied(reply)

    def close(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._json_bytes = None


class HttpPool:
    """Opens connections as they are needed, up to a limit. Exchanges beyond the limit wait in a queue."""

    def __init__(self, url: str, limit: int, ca_file: str | None = None) -> None:
        host, port, self._tls = server_at(url, ca_file)
        self._address = host, port
        self.host = urlsplit(url).netloc
        self._url, self._limit = url, limit
        self._idle: deque[_Connection] = deque()  # used in turn, to reach every process of the server
        self._all: set[_Connection] = set()
        self._opening = 0
        self._queue: deque[SentRequest] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    async def warm_up(self, connections: int) -> None:
        """Open some connections before the run; raises an error if no server listens."""
        try:
            self._opening += connections
            await asyncio.gather(*[self._open() for _ in range(connections)])
        except OSError as error:
            raise SlimError(f"no server at {self._url} ({error}); start one with: slim serve") from None

    def ask(self, exchange: "SentRequest") -> None:
        """Send a request on an idle connection, on a new one, or on the next that becomes free."""
        if self._idle:
            self._idle.popleft().ask(exchange)
            return
        self._queue.append(exchange)
        if len(self._all) + self._opening < self._limit:
            self._opening += 1  # counted now: many requests may come before the task starts
            task = asyncio.get_running_loop().create_task(self._open_or_fail())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def free(self, connection: _Connection) -> None:
        """Give a free connection the next exchange in the queue, or keep it idle."""
        if self._queue:
            connection.ask(self._queue.popleft())
        else:
            self._idle.append(connection)

    def lost(self, connection: _Connection) -> None:
        """Forget a closed connection."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        """Close every connection; exchanges under way count as lost."""
        for connection in list(self._all):
            connection.close()

    async def _open(self) -> None:
        try:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(
                lambda: _Connection(self), *self._address, ssl=self._tls
            )
        finally:
            self._opening -= 1
        self._all.add(connection)
        self.free(connection)

    async def _open_or_fail(self) -> None:
        try:
            await self._open()
        except OSError as error:
            if self._queue:
                self._queue.popleft().replied(Reply(LOST, str(error).encode(), None))


WARM_CONNECTIONS = 16
RATE_PER_S, SECONDS = 20.0, 10.0
"""What is sent unless the user says otherwise."""

NO_REPLY = -1
"""The status of a request that had no answer when the generator gave up waiting."""

Inputs = Mapping[str, NDArray[Any]]
"""Examples to send: one array per input tensor, one row per example."""

RequestPrefix = Callable[[str, Inputs], bytes]
"""Returns the part of a request before its tensors, for a host and tensors of the right shape."""


class Target(Struct, frozen=True, kw_only=True):
    """The model to ask over Open Inference Protocol v2, the outputs to ask for, and the token."""

    token: str = ""
    model: str = DEFAULT_MODEL
    outputs: tuple[str, ...] = ("classes",)

    def prefix(self, terms: Mapping[str, bool | int | float | str]) -> RequestPrefix:
        """Return a writer of request prefixes with binary tensors; every request has the same terms."""

        def write(host: str, example: Inputs) -> bytes:
            body, json_bytes = write_request(example, self.outputs, terms)
            token = f"authorization: Bearer {self.token}\r\n" if self.token else ""
            head = (
                f"POST /v2/models/{self.model}/infer HTTP/1.1\r\nhost: {host}\r\n{token}"
                f"content-type: application/octet-stream\r\ncontent-length: {len(body)}\r\n"
                f"inference-header-content-length: {json_bytes}\r\n\r\n"
            )
            return head.encode() + body[:json_bytes]

        return write


class SentRequest:
    """One request of the run: when it was due, sent and answered (in seconds of the run), and the reply."""

    def __init__(self, due_s: float, examples: NDArray[np.int64], generator: "LoadGenerator") -> None:
        self.due_s, self.examples = due_s, examples
        self.sent_s = self.done_s = due_s
        self.reply: Reply | None = None
        self._generator = generator

    @property
    def status(self) -> int:
        """The HTTP status; 0 if the connection broke, -1 if there was no answer."""
        return NO_REPLY if self.reply is None else self.reply.status

    def request(self) -> bytes:
        """Note the time and return the bytes to send."""
        self.sent_s = self._generator.now_s
        return self._generator.request_with(self.examples)

    def replied(self, reply: Reply) -> None:
        """Note the time and keep the reply."""
        self.done_s, self.reply = self._generator.now_s, reply
        self._generator.under_way -= 1


class LoadGenerator:
    """Sends one request at each due time and keeps the replies."""

    def __init__(
        self,
        url: str,
        inputs: Inputs,
        prefix: RequestPrefix,
        *,
        ca_file: str | None = None,
        connections: int = 512,
        patience_s: float = 30.0,
    ) -> None:
        self._pool = HttpPool(url, connections, ca_file)
        self._inputs, self._preface, self._patience_s = inputs, prefix, patience_s
        self._warm = min(WARM_CONNECTIONS, connections)
        self.under_way = 0
        self._zero_s = monotonic()

    @property
    def now_s(self) -> float:
        """Seconds since the start of the run."""
        return monotonic() - self._zero_s

    def request_with(self, numbers: NDArray[np.int64]) -> bytes:
        """Return a complete request with these examples."""
        return b"".join([self._before, *[array[numbers].tobytes() for array in self._inputs.values()]])

    async def run(
        self,
        due_s: NDArray[np.float64],
        numbers: NDArray[np.int64],
        progress: Callable[[int, int], None] = lambda sent, answered: None,
    ) -> list[SentRequest]:
        """Send a request with the examples `numbers[i]` at each `due_s[i]`, then wait for the answers."""
        await self._pool.warm_up(min(self._warm, len(due_s)))
        self._before = self._preface(
            self._pool.host,
            {name: array[:1].repeat(numbers.shape[1], axis=0) for name, array in self._inputs.items()},
        )
        requests = [SentRequest(float(at_s), row, self) for at_s, row in zip(due_s, numbers, strict=True)]
        self._zero_s = monotonic()
        for count, one in enumerate(requests):
            if (wait_s := one.due_s - self.now_s) > 0:
                progress(count, count - self.under_way)
                await asyncio.sleep(wait_s)
            self.under_way += 1
            self._pool.ask(one)
        give_up_s = monotonic() + self._patience_s
        while self.under_way and monotonic() < give_up_s:
            progress(len(requests), len(requests) - self.under_way)
            await asyncio.sleep(0.02)
        self._pool.close()
        progress(len(requests), len(requests) - self.under_way)
        return requests


def load_of(arrivals: str, rate_per_s: float | None, seconds: float | None) -> Load:
    """Return the load to send: a trace without a rate as it was recorded, all of it unless told otherwise."""
    load = Load(rate_per_s=rate_per_s or RATE_PER_S, seconds=seconds or SECONDS, arrivals=arrivals)
    if rate_per_s is None and load.is_trace:
        load = load.replaying(arrivals, seconds)
    load.check()
    return load


def due_times(
    load: Load, seed: int, examples: int, per_request: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return when each request is due and which examples it carries; the same seed gives the same load."""
    times_s = load.arrivals_s(np.random.default_rng(seed))
    if not len(times_s):
        raise ConfigError(
            f"{load.rate_per_s:g} requests per second over {load.seconds:g} s gives no request; "
            "raise one of them"
        )
    return times_s, np.random.default_rng(seed).integers(examples, size=(len(times_s), per_request))


# -- The report and the plot of a load run: outcomes, latency, accuracy, and how late requests left.

_NAMES = {0: "connection lost", -1: "no answer"}


class Latency(Struct, frozen=True, kw_only=True):
    """A distribution in seconds; every value is NaN (null in JSON) if nothing was answered."""

    mean_s: float = nan
    p50_s: float = nan
    p90_s: float = nan
    p99_s: float = nan
    p999_s: float = nan
    max_s: float = nan


class LoadReport(Struct, frozen=True, kw_only=True):
    """The figures of one load run.

    Rates are examples per second over the time in which requests were due. `latency` counts from the time a
    request was due, `latency_from_send` from the time it really left. An answer is in time if the client got
    it before its deadline; without a deadline every answer is in time.
    """

    requests: int
    examples: int
    seconds: float
    offered_per_s: float
    answered_per_s: float
    goodput_per_s: float
    correct_in_time_per_s: float | None
    in_time_share: float
    ended: dict[Outcome, int]  # examples: together all that were offered
    outcomes: dict[str, int]
    refusals: dict[str, int]
    latency: Latency
    latency_from_send: Latency
    dispatch_error: Latency
    accuracy: float | None
    predicted_accuracy: float | None
    energy_mj_per_example: float | None
    energy_source: str
    choices: dict[str, float]
    verdicts: Sequence[LimitVerdict] = ()  # the server's, on each limit of its goal over its last minute


def report(
    sent: Sequence[SentRequest],
    labels: NDArray[np.int64] | None,
    *,
    seconds: float,
    deadline_s: float,
    read: Callable[[Reply], ServerAnswer] = lambda reply: read_answer(reply.body, reply.json_bytes),
) -> LoadReport:
    """Compute the figures of a run from its requests."""
    answered = [one for one in sent if one.status == 200]
    answers = [read(one.reply) for one in answered if one.reply is not None]
    examples = sum(len(one.examples) for one in sent)
    ended = dict.fromkeys(OUTCOMES, 0)
    for one in sent:
        ended[_outcome(one, deadline_s)] += len(one.examples)
    took_s = np.array([one.done_s - one.due_s for one in answered])
    count = np.array([len(one.examples) for one in answered])
    in_time = took_s <= deadline_s
    correct: NDArray[np.int64] | None = None  # examples in each answered request
    if labels is not None:
        pairs = zip(answered, answers, strict=True)
        correct = np.array(
            [int((classes_of(one) == labels[request.examples]).sum()) for request, one in pairs]
        )
    receipts = [answer.receipt for answer in answers]
    return LoadReport(
        requests=len(sent),
        examples=examples,
        seconds=seconds,
        offered_per_s=examples / seconds,
        answered_per_s=float(count.sum()) / seconds,
        goodput_per_s=float(count[in_time].sum()) / seconds,
        correct_in_time_per_s=None if correct is None else float(correct[in_time].sum()) / seconds,
        in_time_share=float(count[in_time].sum()) / examples if examples else nan,
        ended=ended,
        outcomes=dict(Counter(_NAMES.get(one.status, str(one.status)) for one in sent)),
        refusals=_refusals(sent),
        latency=summarize_s(took_s),
        latency_from_send=summarize_s(np.array([one.done_s - one.sent_s for one in answered])),
        dispatch_error=summarize_s(np.array([one.sent_s - one.due_s for one in sent])),
        accuracy=None if correct is None or not count.sum() else float(correct.sum() / count.sum()),
        predicted_accuracy=_mean(receipts, "predicted_accuracy", count),
        energy_mj_per_example=_mean(receipts, "energy_mj", np.ones(len(receipts)), over=count),
        energy_source=str(receipts[0].get("energy_source", "")) if receipts else "",
        choices=_choices(receipts),
    )


def _outcome(one: SentRequest, deadline_s: float) -> Outcome:
    """Say what became of a request, as the server counts it; its reply says if it was refused or late."""
    if one.status == 200:
        return "in_time" if one.done_s - one.due_s <= deadline_s else "late"
    if one.status == TooLate.status and one.reply is not None:
        out_of_reach = DropReason.DEADLINE_OUT_OF_REACH in read_error(one.reply.body)
        return "refused" if out_of_reach else "late"
    return "refused" if one.status in (TooMany.status, Unavailable.status) else "failed"


def summarize_s(values: NDArray[np.float64]) -> Latency:
    """Return mean, percentiles and maximum."""
    if not len(values):
        return Latency()
    p50, p90, p99, p999 = (float(x) for x in np.percentile(values, (50, 90, 99, 99.9)))
    return Latency(
        mean_s=float(values.mean()), p50_s=p50, p90_s=p90, p99_s=p99, p999_s=p999, max_s=float(values.max())
    )


def as_json(figures: LoadReport) -> str:
    """Return the report as JSON text; a figure that does not exist is null."""
    return msgspec.json.format(msgspec.json.encode(figures), indent=1).decode()


def plot_load(sent: Sequence[SentRequest], title: str, path: Path, *, deadline_s: float) -> None:
    """Plot the rates and the latency over time, and the distribution of the latency."""
    plt = pyplot()
    figure, (rates, scatter, cdf) = plt.subplots(1, 3, figsize=(16, 4.6), layout="constrained")
    figure.suptitle(title)
    due_s = np.array([one.due_s for one in sent])
    good = np.array([one.status == 200 for one in sent])
    took_s = np.array([one.done_s - one.due_s for one in sent])
    edges = np.linspace(0, max(float(due_s.max()), 1e-3), 61)
    width_s = edges[1] - edges[0]
    for label, chosen, colour in (
        ("due", np.ones(len(sent), dtype=bool), COLOURS[7]),
        ("answered", good, COLOURS[0]),
        ("not answered", ~good, COLOURS[3]),
    ):
        rates.stairs(np.histogram(due_s[chosen], edges)[0] / width_s, edges, label=label, color=colour)
    rates.set(xlabel="due (s)", ylabel="requests/s", title="Requests by the time they were due")
    rates.legend(fontsize=8)
    scatter.plot(due_s[good], np.maximum(took_s[good], 1e-4), ".", markersize=2, color=COLOURS[0])
    scatter.set(yscale="log", xlabel="due (s)", ylabel="latency (s)", title="Latency from the due time")
    ordered = np.sort(took_s[good])
    cdf.plot(
        np.maximum(ordered, 1e-4), np.arange(1, len(ordered) + 1) / max(1, len(ordered)), color=COLOURS[0]
    )
    cdf.set(xscale="log", xlabel="latency (s)", ylabel="share of answers", title="Latency")
    if deadline_s < 1e6:
        scatter.axhline(deadline_s, color="black", linestyle="--", linewidth=1)
        cdf.axvline(deadline_s, color="black", linestyle="--", linewidth=1)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _refusals(sent: Sequence[SentRequest]) -> dict[str, int]:
    """Count the most common reasons servers gave; without digits, so that equal reasons count together."""
    why = Counter(
        "".join(c for c in read_error(one.reply.body) if not c.isdigit())
        if one.status > 0
        else one.reply.body.decode()
        for one in sent
        if one.reply is not None and one.status != 200
    )
    return dict(why.most_common(8))


def _mean(
    receipts: Sequence[dict[str, bool | int | float | str]],
    name: str,
    weights: NDArray[np.float64] | NDArray[np.int64],
    over: NDArray[np.int64] | None = None,
) -> float | None:
    """Return the weighted mean of a figure in the receipts; None if the server does not give it."""
    values = [one.get(name) for one in receipts]
    if not values or not all(isinstance(value, (int, float)) for value in values):
        return None
    total = float(np.array(values, dtype=float) @ weights)
    return total / float((weights if over is None else over).sum())


def _choices(receipts: Sequence[dict[str, bool | int | float | str]]) -> dict[str, float]:
    """Return the share of segments served at each choice."""
    served = Counter(
        word
        for one in receipts
        for plan in str(one.get("choices", "")).split(";")
        for word in plan.split(",")
    )
    served.pop("", None)
    total = sum(served.values())
    return {choice: served[choice] / total for choice in sorted(served)}
