"""The story of one request, read from the log of a run: what happened to it, when, and why."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slimsched.core.config import DataError
from slimsched.core.log import Log
from slimsched.models.spec import ModelSpec
from slimsched.serving.domain.cluster import GATEWAY_NAME, Cluster
from slimsched.serving.domain.request import Request
from slimsched.serving.gateway.messages import (
    Answer,
    Command,
    Drop,
    Event,
    RequestsArrived,
    SegmentFinished,
    SendBlock,
)

# -- Sentences that say why a router decided as it did, from the numbers that it kept.


def explain_route(command: SendBlock, servers: Sequence[str], model: ModelSpec) -> str:
    """Write one sentence: the reason, what the choice costs and is worth, what binds, and the runner-up."""
    reason, why = command.reason, command.why
    if why is None:
        return reason
    gives = f"{100 * why.worth:.2f} % within reach for {1e3 * why.cost_s:.3f} ms of device time"
    other = ""
    if why.server >= 0:
        choice = model.segments[command.block.key.segment][why.choice]
        other = f"; next best {servers[why.server]} at {choice}, {100 * why.behind:.3f} points worse"
    decides = {"": "device time is free", "load": "the load decides"}.get(
        why.binding, f"{why.binding} decides"
    )
    return f"{reason}: {gives}; {decides}{other}"


class StoryStep(Struct, frozen=True, kw_only=True):
    """One thing that happened to a request."""

    at_s: float
    text: str


class RequestStory(Struct, frozen=True, kw_only=True):
    """What happened to a request, oldest first."""

    request: int
    steps: list[StoryStep]


def tell_story(logs: Sequence[Path], request: int, cluster: Cluster) -> RequestStory:
    """Read what the gateway was told and decided about a request."""
    try:
        steps = [
            StoryStep(at_s=now_s, text=text)
            for now_s, event, commands in _entries(logs)
            for text in [
                *_told(event, request, cluster),
                *(said for command in commands for said in _decided(command, request, cluster, now_s)),
            ]
        ]
    except (msgspec.ValidationError, LookupError) as error:
        raise DataError(f"the log does not fit its own scenario ({error}); write it again") from None
    if not steps:
        raise DataError(f"the log has no request {request}; requests have numbers from 0 on")
    return RequestStory(request=request, steps=steps)


def slowest(logs: Sequence[Path]) -> int | None:
    """Return the number of the answered request that took longest; None if none was answered."""
    answers = (
        (now_s - request.arrival_s, request.ids[-1])
        for now_s, _, commands in _entries(logs)
        for command in commands
        if isinstance(command, Answer)
        for request in command.requests
    )
    return max(answers, default=(0.0, None))[1]


def _entries(logs: Sequence[Path]) -> Iterator[tuple[float, Event, list[Command]]]:
    """Read what the gateways of a run were told and decided, in order of time."""
    events, commands = msgspec.json.Decoder(Event), msgspec.json.Decoder(list[Command])
    for log in logs:
        for entry in Log(log).entries():
            if entry.machine == GATEWAY_NAME:
                yield entry.now_s, events.decode(entry.event), commands.decode(entry.commands)


def _told(event: Event, number: int, cluster: Cluster) -> Iterator[str]:
    match event:
        case RequestsArrived(requests=requests):
            if (request := _find(requests, number)) is not None:
                yield f"arrives{_terms(request, cluster)}"
        case SegmentFinished(blocks=blocks):
            if any(_find(block.requests, number) is not None for block in blocks):
                key = blocks[0].key
                segments = cluster.models[key.model].spec.segments[key.segment :]
                ran = zip(segments, (event.choice, *event.ahead), strict=False)
                names = ",".join(choices[choice] for choices, choice in ran)
                energy_mj = 1e3 * event.energy_j / max(1, event.size)
                yield (
                    f"back from {cluster.names[event.server]} at {names}: in a batch of {event.size}, which "
                    f"took {1e3 * event.busy_s:.2f} ms and {energy_mj:.2f} mJ per example"
                )


def _decided(command: Command, number: int, cluster: Cluster, now_s: float) -> Iterator[str]:
    match command:
        case SendBlock(block=block, server=server):
            if _find(block.requests, number) is not None:
                model = cluster.models[block.key.model].spec
                named = ",".join(model.segments[leg.segment][leg.choice] for leg in block.key.legs)
                yield (
                    f"to {cluster.names[server]} at {named}, with {block.examples - 1} others: "
                    f"{explain_route(command, cluster.names, model)}"
                )
        case Answer(requests=requests):
            if (request := _find(requests, number)) is not None:
                served = cluster.models[request.model]
                accuracy = 100 * served.expected_accuracy(request.path, request.trail)
                plan, took_ms = served.spec.text(request.path), 1e3 * (now_s - request.arrival_s)
                yield f"answered after {took_ms:.2f} ms by plan {plan}, expected accuracy {accuracy:.2f} %"
        case Drop(requests=requests, reason=reason, detail=detail):
            if _find(requests, number) is not None:
                yield f"dropped: {reason}{f', {detail}' if detail else ''}"


def _terms(request: Request, cluster: Cluster) -> str:
    terms = [f"for model {cluster.models[request.model].name}"] if len(cluster.models) > 1 else []
    terms += [f"accuracy of at least {100 * request.min_accuracy:g} %"] if request.min_accuracy else []
    terms += [f"at most {1e3 * request.max_energy_j:g} mJ"] if request.max_energy_j else []
    terms += [f"priority {request.priority}"] if request.priority else []
    return f" ({', '.join(terms)})" if terms else ""


def _find(requests: Sequence[Request], number: int) -> Request | None:
    return next((request for request in requests if number in request.ids), None)
