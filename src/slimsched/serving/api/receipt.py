"""The receipt of a call, as clients get it: what was chosen, where it ran, what it took."""

from collections.abc import Sequence

from msgspec import Struct

from slimsched.models.spec import ModelSpec
from slimsched.serving.api.model_face import Outputs
from slimsched.serving.api.request_parameters import Parameter
from slimsched.serving.execution.live.parcel import Receipt


class InferenceResult(Struct, frozen=True, kw_only=True):
    """The model's outputs, and the receipt as the response's parameters."""

    outputs: Outputs
    parameters: dict[str, Parameter]


def write_receipt(
    spec: ModelSpec, receipts: Sequence[Receipt], examples: int, accuracy: float
) -> dict[str, Parameter]:
    """Return the receipt: choices and servers of each example; means for the rest."""
    count = len(receipts)
    each = examples // count  # examples per receipt
    queue_s = sum([one.queue_s for one in receipts]) / count
    compute_s = sum([one.compute_s for one in receipts]) / count
    latency_s = sum([one.latency_s for one in receipts]) / count
    return {
        "choices": ";".join([spec.text(one.path) for one in receipts] * each),
        "servers": ";".join([",".join(one.servers) for one in receipts] * each),
        "predicted_accuracy": accuracy,
        "queue_ms": 1e3 * queue_s,
        "compute_ms": 1e3 * compute_s,
        "network_ms": 1e3 * max(0.0, latency_s - queue_s - compute_s),
        "energy_mj": 1e3 * each * sum([one.energy_j for one in receipts]),
        "energy_source": receipts[0].energy_source,
        "reason": receipts[0].reasons[-1],
    }
