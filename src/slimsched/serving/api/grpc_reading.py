"""Reads the message of a gRPC call, within limits that gRPC itself does not have.

gRPC keeps a message that arrives slowly for as long as its client likes, and does so for every call at once.
So only a few messages may arrive at the same time, each in a limited time; other calls wait.
"""

import asyncio
from typing import Any

import grpc

from slimsched.serving.api.grpc_context import GrpcContext
from slimsched.serving.api.ledger import Account, Ledger
from slimsched.serving.api.limits import Limits
from slimsched.serving.api.refusal import BadRequest, TooLate, Unavailable

SMALL_AT_ONCE = 8
"""How many messages other than inference requests may arrive at the same time."""


class GrpcReading:
    """Lets messages in; those of inference requests and the others do not wait for each other."""

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self._ledger = ledger
        self.account: Account = ledger.open("gRPC")
        self.longest_bytes = 2 * limits.body_bytes
        """gRPC refuses longer messages itself, with RESOURCE_EXHAUSTED."""
        large_at_once = max(2, limits.held_bytes // self.longest_bytes)
        self._large, self._small = asyncio.Semaphore(large_at_once), asyncio.Semaphore(SMALL_AT_ONCE)

    async def read(self, context: Any, limits: Limits, *, is_large: bool) -> bytes:
        """Return the message of a call; refuse one that is too large, too slow, or more than can be held."""
        raw = context.arrived() if isinstance(context, GrpcContext) else None
        if raw is None:
            raw = await self._await(context, limits, is_large)
        if raw is grpc.aio.EOF:
            raise BadRequest("the call has no message; send one")
        self.check(raw, limits)
        return bytes(raw)

    async def _await(self, context: Any, limits: Limits, is_large: bool) -> Any:
        """Wait for a message, in a limited time from when it is this call's turn."""
        within_s = limits.grace_s + (limits.body_bytes / limits.pace_bytes_per_s / 16 if is_large else 0.0)
        async with self._large if is_large else self._small:
            try:
                async with asyncio.timeout(within_s):
                    return await context.read()
            except TimeoutError:
                raise TooLate(f"the message did not arrive whole in {within_s:.0f} s") from None

    def check(self, raw: bytes, limits: Limits) -> None:
        """Refuse a message that is too large, or more than can be held."""
        if len(raw) > limits.body_bytes:
            raise BadRequest(
                f"the message has {len(raw)} bytes, {limits.body_bytes} are the limit; "
                "send fewer images per request"
            )
        if 2 * (self.account.held_bytes + len(raw)) > limits.held_bytes:
            raise Unavailable("too many bytes of requests are under way; try again")
