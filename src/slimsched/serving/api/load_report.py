"""What a load run showed: outcomes, latency from the due time, accuracy, and how punctual the sender was."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import nan

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.api.client_message import Answer, classes_of, read_answer, read_error
from slimsched.serving.api.http_exchange import Reply
from slimsched.serving.api.load_generator import Sent

_NAMES = {0: "connection lost", -1: "no answer"}


class Latency(Struct, frozen=True, kw_only=True):
    """Seconds; not a number (null in JSON) where nothing was answered."""

    mean_s: float = nan
    p50_s: float = nan
    p90_s: float = nan
    p99_s: float = nan
    p999_s: float = nan
    max_s: float = nan


class LoadReport(Struct, frozen=True, kw_only=True):
    """The figures of one load run; rates are images a second over the time requests were due in.

    `latency` counts from when a request was due, `latency_from_send` from when it really left. In time means
    within the deadline that was asked for, as the client saw it; without a deadline every answer is.
    """

    requests: int
    images: int
    seconds: float
    offered_per_s: float
    answered_per_s: float
    goodput_per_s: float
    correct_in_time_per_s: float | None
    in_time_share: float
    outcomes: dict[str, int]
    refusals: dict[str, int]
    latency: Latency
    latency_from_send: Latency
    dispatch_error: Latency
    accuracy: float | None
    predicted_accuracy: float | None
    energy_mj_per_image: float | None
    energy_source: str
    widths: dict[str, float]


def read_reply(reply: Reply) -> Answer:
    """A reply of the Open Inference Protocol."""
    return read_answer(reply.body, reply.json_bytes)


def report(
    sent: Sequence[Sent],
    labels: NDArray[np.int64] | None,
    *,
    seconds: float,
    deadline_s: float,
    read: Callable[[Reply], Answer] = read_reply,
) -> LoadReport:
    """Fold a run's requests into its figures."""
    answered = [one for one in sent if one.status == 200]
    answers = [read(one.reply) for one in answered if one.reply is not None]
    images = sum(len(one.images) for one in sent)
    took_s = np.array([one.done_s - one.due_s for one in answered])
    count = np.array([len(one.images) for one in answered])
    in_time = took_s <= deadline_s
    right = None if labels is None else _right(answered, answers, labels)
    receipts = [answer.receipt for answer in answers]
    return LoadReport(
        requests=len(sent),
        images=images,
        seconds=seconds,
        offered_per_s=images / seconds,
        answered_per_s=float(count.sum()) / seconds,
        goodput_per_s=float(count[in_time].sum()) / seconds,
        correct_in_time_per_s=None if right is None else float(right[in_time].sum()) / seconds,
        in_time_share=float(count[in_time].sum()) / images if images else nan,
        outcomes=dict(Counter(_NAMES.get(one.status, str(one.status)) for one in sent)),
        refusals=_refusals(sent),
        latency=spread(took_s),
        latency_from_send=spread(np.array([one.done_s - one.sent_s for one in answered])),
        dispatch_error=spread(np.array([one.sent_s - one.due_s for one in sent])),
        accuracy=None if right is None or not count.sum() else float(right.sum() / count.sum()),
        predicted_accuracy=_mean(receipts, "predicted_accuracy", count),
        energy_mj_per_image=_mean(receipts, "energy_mj", np.ones(len(receipts)), over=count),
        energy_source=str(receipts[0].get("energy_source", "")) if receipts else "",
        widths=_widths(receipts),
    )


def spread(values: NDArray[np.float64]) -> Latency:
    """Mean, percentiles and maximum."""
    if not len(values):
        return Latency()
    p50, p90, p99, p999 = (float(x) for x in np.percentile(values, (50, 90, 99, 99.9)))
    return Latency(
        mean_s=float(values.mean()), p50_s=p50, p90_s=p90, p99_s=p99, p999_s=p999, max_s=float(values.max())
    )


def as_json(found: LoadReport) -> str:
    """JSON text; figures that do not exist are null."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode()


def _right(
    answered: Sequence[Sent], answers: Sequence[Answer], labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Correct images of each answered request."""
    return np.array(
        [
            int((classes_of(answer) == labels[one.images]).sum())
            for one, answer in zip(answered, answers, strict=True)
        ],
        dtype=np.int64,
    )


def _refusals(sent: Sequence[Sent]) -> dict[str, int]:
    """The commonest reasons servers gave, numbers left out so that equal ones count together."""
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
    """A figure of the receipts, weighted; None where the server gives none."""
    values = [one.get(name) for one in receipts]
    if not values or not all(isinstance(value, (int, float)) for value in values):
        return None
    total = float(np.array(values, dtype=float) @ weights)
    return total / float((weights if over is None else over).sum())


def _widths(receipts: Sequence[dict[str, bool | int | float | str]]) -> dict[str, float]:
    """Share of segments served at each width."""
    served = Counter(
        word
        for one in receipts
        for widths in str(one.get("widths", "")).split(";")
        for word in widths.split(",")
    )
    served.pop("", None)
    total = sum(served.values())
    return {width: served[width] / total for width in sorted(served)}
