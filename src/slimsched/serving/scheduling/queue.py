"""The queue of a local scheduler: holds blocks by key and knows which key is served next."""

from collections.abc import Collection, Iterator
from heapq import heapify, heappop, heappush

from slimsched.serving.domain.block import Block
from slimsched.serving.domain.key import Key

Rank = tuple[float, float, int]


class KeyQueue:
    """Orders the blocks of each key by rank (priority, deadline, arrival); the lowest rank is the head.

    In plain FIFO only arrival counts.
    """

    def __init__(self, *, by_deadline: bool, by_priority: bool) -> None:
        self._by_deadline = by_deadline
        self._by_priority = by_priority
        self._heaps: dict[Key, list[tuple[Rank, Block]]] = {}
        self._sizes: dict[Key, int] = {}
        self._order: list[tuple[Rank, Key]] = []  # ranks of all blocks; may include blocks already served
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(self._sizes.values())

    def size(self, key: Key) -> int:
        """Number of waiting examples of a key."""
        return self._sizes.get(key, 0)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the keys that have waiting requests."""
        return iter(self._heaps)

    def push(self, block: Block) -> None:
        """Add a block."""
        self._arrivals += 1
        rank = (
            -float(block.priority) if self._by_priority else 0.0,
            block.deadline_s if self._by_deadline else 0.0,
            self._arrivals,
        )
        key = block.key
        heap = self._heaps.get(key)
        if heap is None:
            self._heaps[key] = [(rank, block)]
            self._sizes[key] = block.examples
        else:
            heappush(heap, (rank, block))
            self._sizes[key] += block.examples
        heappush(self._order, (rank, key))

    def head(self, held_up: Collection[Key] = ()) -> Key | None:
        """Return the key served next, leaving out those that are held up."""
        if held_up:
            return next((key for key in self.in_order() if key not in held_up), None)
        order, heaps = self._order, self._heaps
        while order:
            rank, key = order[0]
            heap = heaps.get(key)
            if heap is not None and heap[0][0] == rank:
                return key
            heappop(order)  # its block was served with an earlier one of its key
        return None

    def in_order(self) -> list[Key]:
        """List all waiting keys, most urgent first."""
        return sorted(self._heaps, key=self._first_rank)

    def pop(self, key: Key, limit: int) -> list[Block]:
        """Take up to `limit` examples of a key; split the last block if necessary."""
        taken: list[Block] = []
        heap = self._heaps[key]
        room = limit
        while heap and room > 0:
            rank, block = heap[0]
            count = block.examples
            if count <= room:
                heappop(heap)
            else:
                block, rest = block.split(room)
                heap[0] = (rank, rest)
                count = room
            taken.append(block)
            room -= count
        self._shrink(key, limit - room)
        return taken

    def withdraw(self, requests: frozenset[int]) -> list[Block]:
        """Remove these examples from the queue; return the removed blocks or parts of blocks."""
        gone: list[Block] = []
        for key, heap in list(self._heaps.items()):
            left: list[tuple[Rank, Block]] = []
            for rank, block in heap:
                out, stay = block.split_off(requests)
                gone += [out] if out is not None else []
                left += [(rank, stay)] if stay is not None else []
            heap[:] = left
            heapify(heap)
            self._sizes[key] = sum(block.examples for _, block in heap)
            if not heap:
                del self._heaps[key], self._sizes[key]
        return gone

    def first(self, key: Key) -> Block:
        """Return the first block of a key without removing it."""
        return self._heaps[key][0][1]

    def _shrink(self, key: Key, count: int) -> None:
        self._sizes[key] -= count
        if not self._heaps[key]:
            del self._heaps[key], self._sizes[key]

    def _first_rank(self, key: Key) -> Rank:
        return self._heaps[key][0][0]
