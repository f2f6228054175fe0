"""A block: requests that the router sends to one server together."""

from collections.abc import Set

from msgspec import Struct

from slimsched.serving.domain.examples import count_examples, ids_of, split_after, split_by
from slimsched.serving.domain.key import Key
from slimsched.serving.domain.request import Request


class Block(Struct, frozen=True, kw_only=True, array_like=True):
    """A group of requests with one key. A server may split it over batches; the parts keep its id.

    `priority` is the highest and `deadline_s` the earliest of its requests. With `keep`, the server keeps
    what every segment gives until it is told to forget, because a wider plan may go on from there.
    """

    id: int
    key: Key
    requests: tuple[Request, ...]
    deadline_s: float
    priority: int = 0
    keep: bool = False

    @property
    def examples(self) -> int:
        """How many examples its requests have."""
        return count_examples(self.requests)

    def split(self, size: int) -> "tuple[Block, Block]":
        """Split the block after `size` examples."""
        first, rest = split_after(self.requests, size)
        return self._with(first), self._with(rest)

    def split_off(self, ids: Set[int]) -> "tuple[Block | None, Block | None]":
        """Split the block into the examples with these ids and the rest; None for an empty part."""
        if ids.isdisjoint(ids_of(self.requests)):
            return None, self
        chosen, rest = split_by(self.requests, ids)
        return self._with(chosen), self._with(rest) if rest else None

    def _with(self, requests: tuple[Request, ...]) -> "Block":
        return Block(
            id=self.id,
            key=self.key,
            requests=requests,
            deadline_s=self.deadline_s,
            priority=self.priority,
            keep=self.keep,
        )


def block_of(block_id: int, key: Key, requests: tuple[Request, ...], *, keep: bool = False) -> Block:
    """Make a block that is as urgent as its most urgent requests."""
    if len(requests) == 1:
        deadline_s, priority = requests[0].deadline_s, requests[0].priority
    else:
        deadline_s = min([request.deadline_s for request in requests])
        priority = max([request.priority for request in requests])
    return Block(id=block_id, key=key, requests=requests, deadline_s=deadline_s, priority=priority, keep=keep)
