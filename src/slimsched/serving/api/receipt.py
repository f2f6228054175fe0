"""The receipt of a call, as clients get it: what was chosen, where it ran, what it took."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from slimsched.models.spec import ModelSpec, Path
from slimsched.serving.api.model_face import Outputs
from slimsched.serving.api.request_parameters import Parameter
from slimsched.serving.domain.request import ANY_TERMS, Terms
from slimsched.serving.live.calls import Receipt


class InferenceResult(Struct, frozen=True, kw_only=True):
    """The model's outputs, and the receipt as the response's parameters."""

    outputs: Outputs
    parameters: dict[str, Parameter]


def write_receipt(
    spec: ModelSpec, receipts: Sequence[Receipt], accuracy: Callable[[Path], float], terms: Terms = ANY_TERMS
) -> dict[str, Parameter]:
    """Return the receipt: choices and servers of each example; means for the rest."""
    count = sum([one.examples for one in receipts])
    choices, servers = [], []
    queue_s = compute_s = latency_s = energy_j = promised = 0.0
    for one in receipts:
        choices += [spec.text(one.path)] * one.examples
        servers += [",".join(one.servers)] * one.examples
        share = one.examples / count
        sure = -1.0 if one.trail is None else one.trail.sure
        promised += share * (sure if sure >= 0.0 else accuracy(one.path))
        queue_s += share * one.queue_s
        compute_s += share * one.compute_s
        latency_s += share * one.latency_s
        energy_j += one.examples * one.energy_j
    return {
        "choices": ";".join(choices),
        "servers": ";".join(servers),
        "predicted_accuracy": promised,
        "queue_ms": 1e3 * queue_s,
        "compute_ms": 1e3 * compute_s,
        "network_ms": 1e3 * max(0.0, latency_s - queue_s - compute_s),
        "energy_mj": 1e3 * energy_j,
        "energy_source": receipts[0].energy_source,
        "reason": receipts[0].reasons[-1],
        "request": receipts[0].request,
        **_weighed(receipts[0]),
        **_how_sure(spec, receipts),
        **_missed(terms, energy_j / count),
    }


def _weighed(receipt: Receipt) -> dict[str, Parameter]:
    """Return which limit decided about the last segments, and which server was second best."""
    why = receipt.why
    if why is None:
        return {}
    decided: dict[str, Parameter] = {"decided_by": why.binding or "nothing: device time is free"}
    if why.server < 0:
        return decided
    return {**decided, "runner_up": receipt.runner_up, "runner_up_points_behind": 100 * why.behind}


def _missed(terms: Terms, energy_j: float) -> dict[str, Parameter]:
    """Return which of the sender's limits was not kept: small batches may take more than was planned."""
    if not 0.0 < terms.max_energy_j < energy_j:
        return {}
    asked = f"asked for at most {1e3 * terms.max_energy_j:g} mJ per example, took {1e3 * energy_j:.3g} mJ"
    return {"missed": asked}


def _how_sure(spec: ModelSpec, receipts: Sequence[Receipt]) -> dict[str, Parameter]:
    """Return, where answers are judged, how sure each is, why it was sent, and which plans ran before it."""
    trails = [one.trail for one in receipts for _ in range(one.examples) if one.trail is not None]
    if len(trails) < sum(one.examples for one in receipts) or min(trail.sure for trail in trails) < 0.0:
        return {}
    return {
        "sure": ";".join(f"{trail.sure:.3f}" for trail in trails),
        "stopped": ";".join(trail.why for trail in trails),
        "tried": ";".join(">".join(map(spec.text, trail.tried)) for trail in trails),
    }
