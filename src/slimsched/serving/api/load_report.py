"""The report and the plot of a load run: outcomes, latency, accuracy, and how late requests left."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import nan
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.serving.api.client_message import Answer, classes_of, read_answer, read_error
from slimsched.serving.api.http_exchange import Reply
from slimsched.serving.api.load_generator import SentRequest
from slimsched.serving.telemetry.pictures import COLOURS, pyplot

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


def read_reply(reply: Reply) -> Answer:
    """Read a reply that follows the Open Inference Protocol."""
    return read_answer(reply.body, reply.json_bytes)


def report(
    sent: Sequence[SentRequest],
    labels: NDArray[np.int64] | None,
    *,
    seconds: float,
    deadline_s: float,
    read: Callable[[Reply], Answer] = read_reply,
) -> LoadReport:
    """Compute the figures of a run from its requests."""
    answered = [one for one in sent if one.status == 200]
    answers = [read(one.reply) for one in answered if one.reply is not None]
    examples = sum(len(one.examples) for one in sent)
    took_s = np.array([one.done_s - one.due_s for one in answered])
    count = np.array([len(one.examples) for one in answered])
    in_time = took_s <= deadline_s
    correct = None if labels is None else _correct_counts(answered, answers, labels)
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


def _correct_counts(
    answered: Sequence[SentRequest], answers: Sequence[Answer], labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of correct examples in each answered request."""
    return np.array(
        [
            int((classes_of(answer) == labels[one.examples]).sum())
            for one, answer in zip(answered, answers, strict=True)
        ],
        dtype=np.int64,
    )


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
