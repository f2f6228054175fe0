"""Room on a device: whether its memory and its utilization allow one more instance (CANLOAD, lines 13-20)."""

from collections import Counter
from typing import Literal

from msgspec import Struct

from slimsched.serving.scheduling.events import TelemetrySampled
from slimsched.serving.scheduling.fleet import Fleet
from slimsched.serving.scheduling.options import SchedulerOptions

Cause = Literal["memory", "utilization"]


class Refusal(Struct, frozen=True):
    """Why an instance may not be loaded: the cause, and a sentence with places for its values."""

    cause: Cause
    reason: str
    values: tuple[object, ...]


class Room:
    """What the sensors last said, and how often each of them refused a load.

    Memory in use is the sum of the profiles of all instances. Where the driver asks the device, it is the
    last reading, changed by the profiles of what was loaded and unloaded since.
    """

    def __init__(self, options: SchedulerOptions) -> None:
        self._options = options
        self._sample: TelemetrySampled | None = None
        self._covered_bytes = 0  # by profile, of the instances that the last reading covers
        self.refused: Counter[str] = Counter()

    def note(self, sample: TelemetrySampled, fleet: Fleet) -> None:
        """Take a reading of the sensors into account."""
        self._sample = sample
        self._covered_bytes = fleet.loaded_bytes

    def refusal(self, fleet: Fleet, memory_bytes: int) -> Refusal | None:
        """Say why an instance of this size may not be loaded now; None if it may."""
        refusal = self._is_full(fleet) or self._over_cap(fleet, memory_bytes) or self._at_block()
        if refusal is not None:
            self.refused[refusal.cause] += 1
        return refusal

    def _is_full(self, fleet: Fleet) -> Refusal | None:
        """Not in the paper: a device may have a limit of its own, such as the number of CUDA streams."""
        limit = self._options.instance_limit
        if not limit or len(fleet) < limit:
            return None
        return Refusal("memory", "{} instances are loaded, the limit is {}", (len(fleet), limit))

    def _over_cap(self, fleet: Fleet, memory_bytes: int) -> Refusal | None:
        """Line 15: VRAM_used + bytes ≤ M_max; where memory was asked, the device must have as much free."""
        used, cap = fleet.memory_bytes, self._options.vram_cap_bytes
        sample = self._sample
        if sample is not None and sample.measured and len(fleet):  # else nothing could ever be loaded
            used = max(0, sample.vram_bytes + fleet.memory_bytes - self._covered_bytes)
        if used + memory_bytes > cap:
            reason = "VRAM: {} bytes in use, {} more would pass the cap {}"
            return Refusal("memory", reason, (used, memory_bytes, cap))
        if sample is not None and sample.free_bytes is not None:
            free = sample.free_bytes - max(0, fleet.memory_bytes - self._covered_bytes)
            if memory_bytes > free:
                return Refusal("memory", "VRAM: {} bytes free, {} needed", (free, memory_bytes))
        return None

    def _at_block(self) -> Refusal | None:
        """Lines 17-18: the latest utilization, if any, must be below U_blk."""
        block = self._options.utilization_block
        if self._sample is None or self._sample.utilization < block:
            return None
        reason = "utilization {:.0%} is not below the block {:.0%}"
        return Refusal("utilization", reason, (self._sample.utilization, block))
