"""CUDA streams of which each belongs to one slot at a time.

PyTorch keeps 32 streams and hands them out in turn, so the 33rd is the first one again. Two slots on one
stream would wait for each other, and a graph that one of them captures would contain the other's work.
"""

from collections.abc import Callable
from threading import Lock
from typing import Generic, Protocol, TypeVar

from slimsched.core.config import SlimError

PER_PRIORITY = 32
"""How many streams PyTorch has of each priority."""


class Stream(Protocol):
    """A stream of PyTorch; `cuda_stream` is the handle of the driver."""

    @property
    def cuda_stream(self) -> int:
        """Two streams with the same handle are the same stream."""
        ...


Kind = TypeVar("Kind", bound=Stream)


class CudaStreams(Generic[Kind]):
    """Lends streams; `make(priority)` returns one that may be in use already."""

    def __init__(self, make: Callable[[int], Kind]) -> None:
        self._make = make
        self._free: list[Kind] = []
        self._in_use: set[int] = set()
        self._lock = Lock()

    def take(self) -> Kind:
        """Return a stream that no other slot has; ordinary ones first, then those of high priority."""
        with self._lock:
            if self._free:
                return self._lend(self._free.pop())
            for priority in (0, -1):
                for _ in range(PER_PRIORITY):
                    stream = self._make(priority)
                    if stream.cuda_stream not in self._in_use:
                        return self._lend(stream)
        raise SlimError(
            f"{len(self._in_use)} instances are loaded, and there are no more CUDA streams; "
            "lower instance_limit, or name fewer resident choices"
        )

    def give_back(self, stream: Kind) -> None:
        """Take a stream back that has nothing left to do."""
        with self._lock:
            self._in_use.discard(stream.cuda_stream)
            self._free.append(stream)

    def _lend(self, stream: Kind) -> Kind:
        self._in_use.add(stream.cuda_stream)
        return stream
