"""The story of one request, read from the log of a run: what happened to it, when, and why."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from slimsched.core.config import DataError
from slimsched.core.log import Log
from slimsched.serving.domain.cluster import GATEWAY_NAME, Cluster
from slimsched.serving.domain.request import Request, Why
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


def explain_route(reason: str, why: Why | None, runner_up: str) -> str:
    """Write one sentence: the reason, what the choice costs and is worth, what binds, and the runner-up.

    `runner_up` names the second best server and choice.
    """
    if why is None:
        return reason
    gives = f"{100 * why.worth:.2f} % within reach for {1e3 * why.cost_s:.3f} ms of device time"
    other = f"; next best {runner_up}, {100 * why.behind:.3f} points worse" if why.server >= 0 else ""
    return f"{reason}: {gives}; {_deciding(why.binding)}{other}"


def _deciding(binding: str) -> str:
    if not binding:
        return "device time is free"
    return "the load decides" if binding == "load" else f"{binding} decides"


class StoryStep(Struct, frozen=True, kw_only=True):
    """One thing that happened to a request."""

    at_s: float
    text: str


class RequestStory(Struct, frozen=True, kw_only=True):
    """What happened to a request, oldest first."""

    request: int
    steps: list[StoryStep]


Entry = tuple[float, Event, list[Command]]


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


def _entries(logs: Sequence[Path]) -> Iterator[Entry]:
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
                names = _choices(cluster, blocks[0].key.model, blocks[0].key.segment, event)
                energy_mj = 1e3 * event.energy_j / max(1, event.size)
                yield (
                    f"back from {cluster.names[event.server]} at {names}: in a batch of {event.size}, which "
                    f"took {1e3 * event.busy_s:.2f} ms and {energy_mj:.2f} mJ per example"
                )


def _decided(command: Command, number: int, cluster: Cluster, now_s: float) -> Iterator[str]:
    match command:
        case SendBlock(block=block, server=server):
            if _find(block.requests, number) is not None:
                segments = cluster.models[block.key.model].spec.segments
                named = ",".join(segments[leg.segment][leg.choice] for leg in block.key.legs)
                yield (
                    f"to {cluster.names[server]} at {named}, with {block.examples - 1} others: "
                    f"{explain_route(command.reason, command.why, _runner_up(command, cluster))}"
                )
        case Answer(requests=requests):
            if (request := _find(requests, number)) is not None:
                model = cluster.models[request.model]
                accuracy = 100 * model.expected_accuracy(request.path, request.trail)
                plan, took_ms = model.spec.text(request.path), 1e3 * (now_s - request.arrival_s)
                yield f"answered after {took_ms:.2f} ms by plan {plan}, expected accuracy {accuracy:.2f} %"
        case Drop(requests=requests, reason=reason, detail=detail):
            if _find(requests, number) is not None:
                yield f"dropped: {reason}{f', {detail}' if detail else ''}"


def _runner_up(command: SendBlock, cluster: Cluster) -> str:
    why, key = command.why, command.block.key
    if why is None or why.server < 0:
        return ""
    return (
        f"{cluster.names[why.server]} at {cluster.models[key.model].spec.segments[key.segment][why.choice]}"
    )


def _choices(cluster: Cluster, model: int, segment: int, event: SegmentFinished) -> str:
    segments = cluster.models[model].spec.segments
    return ",".join(segments[segment + at][one] for at, one in enumerate((event.choice, *event.ahead)))


def _terms(request: Request, cluster: Cluster) -> str:
    terms = [f"for model {cluster.models[request.model].name}"] if len(cluster.models) > 1 else []
    terms += [f"accuracy of at least {100 * request.min_accuracy:g} %"] if request.min_accuracy else []
    terms += [f"at most {1e3 * request.max_energy_j:g} mJ"] if request.max_energy_j else []
    terms += [f"priority {request.priority}"] if request.priority else []
    return f" ({', '.join(terms)})" if terms else ""


def _find(requests: Sequence[Request], number: int) -> Request | None:
    return next((request for request in requests if number in request.ids), None)
