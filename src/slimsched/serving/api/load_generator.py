"""An open-loop load generator: each request leaves when it is due, whether or not earlier ones were answered.

Latency counts from the time a request was due, not from the time it was sent. A stall of the server or of the
generator therefore counts for every request that had to wait (this corrects for coordinated omission). The
report also says how late requests really left.
"""

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import ConfigError
from slimsched.models.spec import DEFAULT_MODEL
from slimsched.serving.api.client_message import write_request
from slimsched.serving.api.http_exchange import HttpPool, Reply
from slimsched.serving.workload.load import Load

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
