"""The limits at the door: how much one request, one client and all clients together may ask for.

Each limit is a field with a range, so a new one is checked and can be set with `--limit` without more code.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from slimsched.core.config import ConfigError
from slimsched.serving.api.ledger import network_of
from slimsched.serving.gateway.messages import SERVED_QUEUE_S

Count = Annotated[int, Meta(ge=1, le=10**6)]
Size = Annotated[int, Meta(ge=1, le=2**40)]
SizeByModel = Annotated[int, Meta(ge=0, le=2**40)]
"""A size in bytes; 0 means that it follows the models."""
Seconds = Annotated[float, Meta(ge=0.01, le=86_400.0)]
CountOrNone = Annotated[int, Meta(ge=0, le=10**6)]
"""A number; 0 means that there is no such limit."""

EXAMPLE_BYTES = 2**10
"""An example under way counts as this much at least: what the gateway keeps for it besides its input."""

FULL_REQUESTS = 1024
"""This many requests with the most examples may be here at once, where memory allows."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the door lets in, in which time, and what it keeps for clients; `docs/reliability.md` explains."""

    examples_per_request: Count = 64
    examples_in_system: CountOrNone = 0
    queue_s: Seconds = SERVED_QUEUE_S  # how long the work ahead of a call without a deadline may take
    body_bytes: SizeByModel = 0  # of one request
    answer_bytes: SizeByModel = 0  # of one answer
    held_bytes: SizeByModel = 0  # of all requests that are here; one address may have half of it
    unread_bytes: SizeByModel = 0  # of all answers that their clients do not read
    connections: Count = 2048
    connections_per_address: Count = 1024
    proxies: str = ""  # addresses that many clients share, with commas between: they may have all there is
    calls: Count = 2048  # gRPC calls at the same time; one address may have half of them
    resets_per_s: Count = 1000  # gRPC calls that one address may take back; twice as many at once
    streams: Count = 32  # of these, streams; one address may have half of them
    pipelined_requests: Count = 32
    pipelined_bytes: Size = 256 * 2**10
    head_bytes: Size = 32 * 2**10
    headers: Count = 100
    head_s: Seconds = 10.0
    grace_s: Seconds = 10.0  # how long a body or an answer may be slower than the pace
    pace_bytes_per_s: Size = 16 * 2**10
    idle_s: Seconds = 75.0
    drain_s: Seconds = 20.0
    shared_regions: Count = 64  # regions of shared memory that clients may register
    shared_bytes: Size = 16 * 2**30  # of all these regions

    def __post_init__(self) -> None:
        self.proxy_addresses  # noqa: B018 - refuses what is no address

    @property
    def proxy_addresses(self) -> frozenset[str]:
        """The addresses that many clients share."""
        try:
            return frozenset(
                [network_of(str(ip_address(one.strip()))) for one in self.proxies.split(",") if one.strip()]
            )
        except ValueError as error:
            raise ValueError(f"proxies: {error}; give addresses such as 10.0.0.7,10.0.0.8") from None

    @property
    def sending_s(self) -> float:
        """How long a gRPC client may take to read an answer."""
        return self.grace_s + self.answer_bytes / self.pace_bytes_per_s / 16


def read_limits(settings: Sequence[str]) -> Limits:
    """Read limits as the command line gives them: NAME=VALUE."""
    given: dict[str, str] = {}
    for setting in settings:
        name, is_set, value = setting.partition("=")
        if not is_set or name not in Limits.__struct_fields__:
            known = ", ".join(Limits.__struct_fields__)
            raise ConfigError(f"--limit '{setting}' is not understood; write NAME=VALUE with one of {known}")
        given[name] = value
    try:
        return msgspec.convert(given, Limits, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"--limit {', '.join(settings)}: {error}") from None


def fitted(limits: Limits, row_bytes: int, answer_row_bytes: int, memory_bytes: int) -> Limits:
    """Fill in the sizes that follow the models: the most that one example takes and gives, as raw tensors.

    `memory_bytes` is the memory of this machine.
    """
    full, answer = (limits.examples_per_request * size for size in (row_bytes, answer_row_bytes))
    body_bytes = limits.body_bytes or max(4 * 2**20, full + 2**16)
    answer_bytes = limits.answer_bytes or max(16 * 2**20, answer + 2**16)
    largest = max(body_bytes, limits.examples_per_request * EXAMPLE_BYTES)
    return replace(
        limits,
        body_bytes=body_bytes,
        answer_bytes=answer_bytes,
        held_bytes=limits.held_bytes or max(_held_bytes(full, memory_bytes), 4 * largest),
        unread_bytes=limits.unread_bytes or max(32 * 2**20, 2 * answer_bytes),
    )


def _held_bytes(full: int, memory_bytes: int) -> int:
    """Return how much requests may take: what many full ones need, or more of a large memory."""
    wanted = max(FULL_REQUESTS * full, memory_bytes // 256)
    return max(96 * 2**20, min(wanted, memory_bytes // 16))


def shared(limits: Limits, fronts: int) -> Limits:
    """Return the share of one of several front processes in what all clients together may have."""
    return replace(
        limits,
        connections=-(-limits.connections // fronts),
        connections_per_address=-(-limits.connections_per_address // fronts),
        calls=-(-limits.calls // fronts),
        resets_per_s=-(-limits.resets_per_s // fronts),
        streams=min(limits.streams, 2 * -(-limits.streams // fronts)),  # the system spreads them unevenly
        held_bytes=max(limits.held_bytes // fronts, 4 * limits.body_bytes),
        unread_bytes=max(limits.unread_bytes // fronts, 2 * limits.answer_bytes),
    )
