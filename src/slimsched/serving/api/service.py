"""The inference service behind both protocols: admits calls within the limits, runs them, writes receipts."""

from enum import StrEnum
from typing import assert_never

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched import __version__
from slimsched.models.slimresnet.weights import ModelCard
from slimsched.models.width import format_widths
from slimsched.serving.api.call import MODEL, VERSION, Call, Parameter
from slimsched.serving.api.refusal import (
    BadRequest,
    ExecutionFailed,
    RefusalError,
    TooLate,
    TooMany,
    Unavailable,
)
from slimsched.serving.api.tally import Tally
from slimsched.serving.domain.drop_reason import DropReason
from slimsched.serving.execution.live.cluster import DroppedError, LiveCluster
from slimsched.serving.execution.live.parcel import Classified


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one request, and all requests together, may ask for."""

    images_per_request: int = 64
    body_bytes: int = 4 * 2**20
    images_in_system: int = 4096
    connections: int = 1024  # HTTP connections, and also gRPC calls at the same time


class Phase(StrEnum):
    """The state of the service: it starts, is ready, then drains."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class InferenceResult(Struct, frozen=True, kw_only=True):
    """Logits (n, classes), and the receipt as the response's parameters."""

    logits: NDArray[np.float32]
    parameters: dict[str, Parameter]


class InferenceService:
    """Accepts calls while it is ready, answers or refuses each, and drains before it stops."""

    def __init__(self, cluster: LiveCluster, card: ModelCard, limits: Limits) -> None:
        self.card, self.limits = card, limits
        self.phase = Phase.STARTING
        self.tally = Tally()
        self._cluster = cluster
        self._best = float(cluster.accuracy.by_tuple.max())

    async def start(self) -> None:
        """Start the servers and wait until they are warm; the service is ready afterwards."""
        await self._cluster.start()
        self.phase = Phase.READY

    async def drain(self) -> None:
        """Refuse new calls, answer the accepted ones and stop the servers."""
        self.phase = Phase.DRAINING
        await self._cluster.stop()

    @property
    def is_ready(self) -> bool:
        """Whether the service accepts a call now."""
        return self.phase is Phase.READY and self._cluster.any_alive

    async def infer(self, call: Call) -> InferenceResult:
        """Classify the images of a call, or raise a refusal that says why not."""
        self._admit(call)
        parcel = self._cluster.submit(call.images.data.cast("B"), call.terms, count=len(call.images))
        try:
            classified = await parcel
        except DroppedError as dropped:
            raise _refusal(dropped) from None
        finally:
            self._cluster.cancel(parcel)
        return InferenceResult(logits=classified.logits, parameters=self._receipt(classified))

    def labels(self, classes: NDArray[np.int64]) -> list[str]:
        """Return the names of classes."""
        return [self.card.classes[int(number)] for number in classes]

    def server_metadata(self) -> dict[str, object]:
        """Return the name, version and extensions of this server."""
        extensions = ["binary_tensor_data", "parameters"]
        return {"name": "slim-scheduler", "version": __version__, "extensions": extensions}

    def model_metadata(self) -> dict[str, object]:
        """Return the model's inputs and outputs."""
        side, classes = self.card.shape.image_size, self.card.shape.classes
        return {
            "name": MODEL,
            "versions": [VERSION],
            "platform": "slimsched_pytorch",
            "inputs": [{"name": "images", "datatype": "UINT8", "shape": [-1, 3, side, side]}],
            "outputs": [
                {"name": "classes", "datatype": "INT64", "shape": [-1]},
                {"name": "logits", "datatype": "FP32", "shape": [-1, classes]},
                {"name": "labels", "datatype": "BYTES", "shape": [-1]},
            ],
        }

    def _admit(self, call: Call) -> None:
        if self.phase is not Phase.READY:
            raise Unavailable(f"the server is {self.phase}; try again shortly")
        if not self._cluster.any_alive:
            raise Unavailable("no server is up at the moment; they are being restarted")
        if call.terms.min_accuracy > self._best:
            asked, best = 100 * call.terms.min_accuracy, 100 * self._best
            raise BadRequest(
                f"parameter min_accuracy asks for {asked:.2f} %, but the best widths reach {best:.2f} %; "
                "ask for less"
            )
        under_way, most = self._cluster.in_system, self.limits.images_in_system
        if under_way + len(call.images) > most:
            raise TooMany(
                f"{under_way} images are under way, {most} are the limit; try again", retry_after_s=1.0
            )

    def _receipt(self, classified: Classified) -> dict[str, Parameter]:
        """Return the receipt: widths and servers per image, separated by semicolons; means for the rest."""
        receipts, images = classified.receipts, len(classified.logits)
        count = len(receipts)
        each = images // count  # images per receipt
        accuracy = sum(self._cluster.accuracy.accuracy(one.widths) for one in receipts) / count
        queue_s = sum(one.queue_s for one in receipts) / count
        compute_s = sum(one.compute_s for one in receipts) / count
        latency_s = sum(one.latency_s for one in receipts) / count
        self.tally.count_images(receipts, each)
        return {
            "widths": ";".join([format_widths(one.widths) for one in receipts] * each),
            "servers": ";".join([",".join(one.servers) for one in receipts] * each),
            "predicted_accuracy": accuracy,
            "queue_ms": 1e3 * queue_s,
            "compute_ms": 1e3 * compute_s,
            "network_ms": 1e3 * max(0.0, latency_s - queue_s - compute_s),
            "energy_mj": 1e3 * each * sum(one.energy_j for one in receipts),
            "energy_source": receipts[0].energy_source,
            "reason": receipts[0].reasons[-1],
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
        case _:
            assert_never(dropped.reason)
