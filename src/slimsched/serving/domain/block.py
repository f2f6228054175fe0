"""A block: requests the router sends to one server together."""

from msgspec import Struct

from slimsched.serving.domain.key import Key
from slimsched.serving.domain.request import Request


class Block(Struct, frozen=True, kw_only=True, array_like=True):
    """A micro-batch group of one key; a server may split it over batches, the parts keep its id.

    `priority` and `deadline_s` are the most urgent of its requests.
    """

    id: int
    key: Key
    requests: tuple[Request, ...]
    deadline_s: float
    priority: int = 0

    def split(self, size: int) -> "tuple[Block, Block]":
        """Cut after `size` requests."""
        return self._with(self.requests[:size]), self._with(self.requests[size:])

    def split_off(self, ids: frozenset[int]) -> "tuple[Block | None, Block | None]":
        """Split the block into the requests with these ids and the rest; None where there are none."""
        if ids.isdisjoint([request.id for request in self.requests]):
            return None, self
        those = tuple(request for request in self.requests if request.id in ids)
        others = tuple(request for request in self.requests if request.id not in ids)
        return self._with(those), self._with(others) if others else None

    def _with(self, requests: tuple[Request, ...]) -> "Block":
        return Block(
            id=self.id,
            key=self.key,
            requests=requests,
            deadline_s=self.deadline_s,
            priority=self.priority,
        )


def block_of(block_id: int, key: Key, requests: tuple[Request, ...]) -> Block:
    """Gather requests into a block as urgent as the most urgent of them."""
    if len(requests) == 1:
        deadline_s, priority = requests[0].deadline_s, requests[0].priority
    else:
        deadline_s = min([request.deadline_s for request in requests])
        priority = max([request.priority for request in requests])
    return Block(id=block_id, key=key, requests=requests, deadline_s=deadline_s, priority=priority)
