"""Forgetting: which activations servers may free because a request has ended."""

from collections.abc import Sequence

from slimsched.serving.domain.cluster import GATEWAY
from slimsched.serving.domain.request import Request, homes_of, ids_of
from slimsched.serving.routing.commands import Command, Forget


def forget(holder: int, requests: Sequence[Request]) -> list[Command]:
    """Free the activations of these requests at `holder`, if that is a server, and where they are kept."""
    ids = {} if holder == GATEWAY or not requests else {holder: ids_of(requests)}
    return _commands(ids | homes_of(requests))


def forget_kept(requests: Sequence[Request]) -> list[Command]:
    """Free what servers keep for requests that are answered."""
    return _commands(homes_of(requests))


def _commands(ids: dict[int, list[int]]) -> list[Command]:
    return [Forget(server=server, requests=tuple(requests)) for server, requests in ids.items()]
