"""The inference service behind both protocols: admits calls within the limits, runs them, writes receipts."""

from collections.abc import Sequence
from enum import StrEnum
from typing import assert_never

from msgspec import Struct

from slimsched import __version__
from slimsched.serving.api.call import Call
from slimsched.serving.api.ledger import Ledger
from slimsched.serving.api.limits import Limits, fitted
from slimsched.serving.api.model_face import ModelFace, Outputs
from slimsched.serving.api.refusal import (
    BadRequest,
    ExecutionFailed,
    NotFound,
    RefusalError,
    TooLate,
    TooMany,
    Unavailable,
)
from slimsched.serving.api.request_parameters import Parameter
from slimsched.serving.api.tally import Tally
from slimsched.serving.domain.drop_reason import DropReason
from slimsched.serving.execution.live.cluster import LiveCluster
from slimsched.serving.execution.live.input_arena import InputArena
from slimsched.serving.execution.live.parcel import Answered, DroppedError, Receipt


class Phase(StrEnum):
    """The state of the service: it starts, is ready, then drains."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class InferenceResult(Struct, frozen=True, kw_only=True):
    """The model's outputs, and the receipt as the response's parameters."""

    outputs: Outputs
    parameters: dict[str, Parameter]


class InferenceService:
    """Accepts calls while it is ready, answers or refuses each, and drains before it stops."""

    def __init__(self, cluster: LiveCluster, limits: Limits, *, row_bytes: int = 0) -> None:
        """`row_bytes` are the inputs of one example of the largest model that may be loaded later."""
        self.phase = Phase.STARTING
        self.tally, self.ledger = Tally(), Ledger()
        self.extensions = ["binary_tensor_data", "parameters"]
        self._cluster, self._limits, self._row_bytes = cluster, limits, row_bytes
        self.use_models()

    def use_models(self) -> None:
        """Offer the models that the cluster serves now."""
        self.faces = [ModelFace(model) for model in self._cluster.models]
        largest = max([self._row_bytes, *(face.spec.row_bytes for face in self.faces)])
        self.limits = fitted(
            self._limits, largest, max([face.answer_bytes for face in self.faces], default=0)
        )
        if self.arena is not None:
            self.arena.limit_bytes = self.limits.held_bytes
        self._by_name = {face.name: face for face in self.faces}

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
        self._admit(call)
        number = call.face.model.number
        parcel = self._cluster.submit(call.inputs, call.terms, count=call.count, model=number)
        try:
            answered = await parcel
        except DroppedError as dropped:
            dropped.__traceback__ = None  # else parcel and error hold each other, with all inputs
            raise _refusal(dropped) from None
        finally:
            self._cluster.cancel(parcel)
        if self._cluster.now_s > parcel.deadline_s:
            raise TooLate("deadline passed; ask for more time or less accuracy")
        return InferenceResult(outputs=answered.outputs, parameters=self._receipt(call.face, answered))

    def face(self, name: str, version: str = "") -> ModelFace:
        """Find a model by name; refuse one, or a version, that this server has not."""
        face = self._by_name.get(name)
        if face is None:
            known = ", ".join(f"'{one}'" for one in self._by_name) or "none"
            raise NotFound(f"unknown model '{name}'; this server has {known}")
        if version not in ("", face.version):
            raise NotFound(f"unknown version '{version}' of '{name}'; this server has '{face.version}'")
        return face

    def server_metadata(self) -> dict[str, object]:
        """Return the name, version and extensions of this server."""
        return {"name": "slim-scheduler", "version": __version__, "extensions": self.extensions}

    def _admit(self, call: Call) -> None:
        if self.phase is not Phase.READY:
            raise Unavailable(f"the server is {self.phase}; try again shortly")
        if not self._cluster.any_alive:
            raise Unavailable(self._cluster.health.trouble)
        best = call.face.model.quality.best_reachable(())
        if call.terms.min_accuracy > best:
            raise BadRequest(
                f"parameter min_accuracy asks for {100 * call.terms.min_accuracy:.2f} %, but the best plan "
                f"reaches {100 * best:.2f} %; ask for less"
            )
        under_way, most = self._cluster.in_system, self.limits.examples_in_system
        if under_way + call.count > most:
            raise TooMany(
                f"{under_way} examples are under way, {most} are the limit; try again", retry_after_s=1.0
            )

    def _receipt(self, face: ModelFace, answered: Answered) -> dict[str, Parameter]:
        """Return the receipt: choices and servers of each example; means for the rest."""
        receipts, examples = answered.receipts, len(answered.outputs[0])
        count = len(receipts)
        each = examples // count  # examples per receipt
        accuracy = sum(face.model.expected_accuracy(one.path, one.trail) for one in receipts) / count
        queue_s = sum(one.queue_s for one in receipts) / count
        compute_s = sum(one.compute_s for one in receipts) / count
        latency_s = sum(one.latency_s for one in receipts) / count
        self.tally.count_examples(receipts, each)
        return {
            "choices": ";".join([face.spec.text(one.path) for one in receipts] * each),
            "servers": ";".join([",".join(one.servers) for one in receipts] * each),
            "predicted_accuracy": accuracy,
            "queue_ms": 1e3 * queue_s,
            "compute_ms": 1e3 * compute_s,
            "network_ms": 1e3 * max(0.0, latency_s - queue_s - compute_s),
            "energy_mj": 1e3 * each * sum(one.energy_j for one in receipts),
            "energy_source": receipts[0].energy_source,
            "reason": receipts[0].reasons[-1],
            **_how_sure(face, receipts, each),
        }


def _how_sure(face: ModelFace, receipts: Sequence[Receipt], each: int) -> dict[str, Parameter]:
    """Return, where answers are judged, how sure each is, why it was sent, and which plans ran before it."""
    trails = [one.trail for one in receipts if one.trail is not None and one.trail.sure >= 0.0]
    if len(trails) < len(receipts):
        return {}
    tried = [">".join(face.spec.text(plan) for plan in trail.tried) for trail in trails]
    return {
        "sure": ";".join([f"{trail.sure:.3f}" for trail in trails] * each),
        "stopped": ";".join([trail.why for trail in trails] * each),
        "tried": ";".join(tried * each),
    }


def _refusal(dropped: DroppedError) -> RefusalError:
    """Turn the reason of a drop into a refusal with the right code."""
    match dropped.reason:
        case DropReason.DEADLINE_PASSED | DropReason.DEADLINE_OUT_OF_REACH:
            return TooLate(f"{dropped}; ask for more time or less accuracy")
        case DropReason.EXECUTION_FAILED:
            return ExecutionFailed(str(dropped))
        case DropReason.QUEUE_FULL | DropReason.CANCELLED:
            return TooMany(f"{dropped}; try again shortly", retry_after_s=1.0)
        case DropReason.NO_SERVER | DropReason.SHUTTING_DOWN:
            return Unavailable(str(dropped))
        case _:
            assert_never(dropped.reason)
