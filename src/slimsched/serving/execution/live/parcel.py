"""A parcel: the images of one call on their way, who waits for them, and what each was given so far."""

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray


class Receipt(Struct, kw_only=True):
    """What an image was given: widths and servers by segment, and where its time and energy went."""

    widths: tuple[float, ...] = ()
    servers: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    queue_s: float = 0.0
    compute_s: float = 0.0
    energy_j: float = 0.0
    energy_source: str = ""
    latency_s: float = 0.0


class Classified(Struct, frozen=True, kw_only=True):
    """Logits (images, classes), and receipts: one each, or one that holds for all of them."""

    logits: NDArray[np.float32]
    receipts: Sequence[Receipt]


class Parcel:
    """Images with neighbouring request ids; as long as they travel together one receipt is kept for all."""

    def __init__(
        self,
        first: int,
        images: memoryview,
        count: int,
        arrival_s: float,
        waiter: "asyncio.Future[Classified]",
    ) -> None:
        self.first, self.count, self.arrival_s, self.waiter = first, count, arrival_s, waiter
        self._images, self._left = images, count
        self._receipts = [Receipt()]
        self._logits: NDArray[np.float32] | None = None

    def __await__(self) -> Generator[Any, None, Classified]:
        """Wait for the answer; that some of its images were dropped is raised."""
        return self.waiter.__await__()

    @property
    def requests(self) -> range:
        """The ids of its images."""
        return range(self.first, self.first + self.count)

    def images(self, start: int, end: int) -> memoryview:
        """The bytes of some of its images."""
        each = len(self._images) // self.count
        return self._images[start * each : end * each]

    def receipts(self, start: int, end: int) -> list[Receipt]:
        """Those of some of its images, to be written in; apart from those of the others from now on."""
        if len(self._receipts) < self.count and end - start < self.count:
            self._receipts = [replace(self._receipts[0]) for _ in range(self.count)]
        return self._receipts if len(self._receipts) < self.count else self._receipts[start:end]

    def put_logits(self, start: int, rows: NDArray[np.float32]) -> None:
        """Keep the network's answers for some of its images."""
        if len(rows) == self.count:
            self._logits = rows
            return
        if self._logits is None:
            self._logits = np.empty((self.count, rows.shape[1]), np.float32)
        self._logits[start : start + len(rows)] = rows

    def answered(self, count: int) -> None:
        """So many more of its images are done; with the last one whoever waits is told."""
        self._left -= count
        if not self._left and not self.waiter.done():
            assert self._logits is not None
            self.waiter.set_result(Classified(logits=self._logits, receipts=self._receipts))
