"""The inference service behind both protocols: admits calls within the limits, runs them, writes receipts."""

from collections.abc import Callable
from enum import StrEnum
from typing import assert_never

from slimsched import __version__
from slimsched.serving.api.call import Call
from slimsched.serving.api.ledger import Ledger
from slimsched.serving.api.limits import EXAMPLE_BYTES, Limits, fitted
from slimsched.serving.api.model_face import ModelFace, find_face
from slimsched.serving.api.receipt import InferenceResult, write_receipt
from slimsched.serving.api.refusal import (
    BadRequest,
    ExecutionFailed,
    RefusalError,
    TooLate,
    TooMany,
    Unavailable,
)
from slimsched.serving.api.shared_memory import SharedMemory
from slimsched.serving.api.shared_memory_control import SharedMemoryControl
from slimsched.serving.api.tally import Tally
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import DropReason, Terms
from slimsched.serving.live.calls import DroppedError
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.memory import InputArena, memory_bytes

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
