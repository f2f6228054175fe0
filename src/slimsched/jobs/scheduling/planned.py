"""When and where waiting jobs will start by everybody's time limit: the plan that backfill keeps to.

As Slurm plans, by its source and by what it did with 200 jobs: a job that cannot start yet reserves *whole
machines*, from its planned start until its limit ends, and nobody behind it may use them in that time. They
are the first ones of the rack where the fewest would do, even if they are free now. Running jobs end at their
limits; those that end within half a minute (then one, two, four…) count as ending together, at the last of
them. Reserved times are rounded down to whole steps of `resolution_s`.
"""

from collections.abc import Sequence
from itertools import groupby
from math import inf
from typing import NamedTuple

from slimsched.jobs.scheduling.free_gpus import FreeGpus

FIRST_WINDOW_S = 30.0


class Slot(NamedTuple):
    """Machines, by index, and the time for which a job has them."""

    start_s: float
    end_s: float
    machines: tuple[int, ...]


class Plan:
    """What will be free when, and what is reserved; built anew for every look."""

    def __init__(
        self, now_s: float, free: FreeGpus, ends: Sequence[tuple[float, int, int]], resolution_s: float
    ) -> None:
        """`ends` are the times when running jobs must end, with their machine and their GPUs there."""
        self._now_s = now_s
        self._free = list(free.by_machine)
        self._rack_of = free.rack_of
        self._resolution_s = resolution_s
        self._later = sorted((max(end_s, now_s), machine, gpus) for end_s, machine, gpus in ends)
        self._reserved: list[Slot] = []

    def take(self, placement: Sequence[tuple[int, int]], end_s: float) -> None:
        """A job starts now on these machines and ends then at the latest."""
        for machine, gpus in placement:
            self._free[machine] -= gpus
            self._later.append((end_s, machine, gpus))
        self._later.sort()

    def reserve(self, slot: Slot) -> None:
        """Keep these machines for a job that starts later."""
        step_s = self._resolution_s
        end_s = slot.end_s if slot.end_s == inf else slot.end_s // step_s * step_s
        self._reserved.append(Slot(slot.start_s // step_s * step_s, end_s, slot.machines))

    def blocked(self, start_s: float, end_s: float) -> set[int]:
        """Return the machines that are reserved at some time in between."""
        return {
            machine
            for slot in self._reserved
            if slot.start_s <= end_s and slot.end_s > start_s
            for machine in slot.machines
        }

    def find(self, share: int, machines: int, length_s: float) -> Slot | None:
        """The first slot for a job that needs a share of GPUs on each of N machines; None is never."""
        at_s = self._now_s
        while True:
            later_s = min((slot.end_s for slot in self._reserved if slot.end_s > at_s), default=inf)
            blocked = self.blocked(at_s, at_s + length_s)
            ready = self._ready([i for i in range(len(self._free)) if i not in blocked], share, machines)
            if ready is not None:
                slot = Slot(max(at_s, ready[0]), max(at_s, ready[0]) + length_s, ready[1])
                if slot.start_s == self._now_s:
                    return slot
                if not self.blocked(slot.start_s, slot.end_s).isdisjoint(slot.machines):
                    later_s = min(later_s, slot.start_s if slot.start_s > at_s else inf)
                elif slot.start_s <= later_s:
                    return slot
            if later_s == inf:
                return None
            at_s = later_s

    def _ready(
        self, usable: Sequence[int], share: int, machines: int
    ) -> tuple[float, tuple[int, ...]] | None:
        """When enough of the usable machines have a share free, reservations aside, and which to take."""
        free = {machine: self._free[machine] for machine in usable}
        fitting = [machine for machine in usable if free[machine] >= share]
        if len(fitting) >= machines:
            return self._now_s, self._first(fitting, machines)
        ends = [end for end in self._later if end[1] in free and end[0] < inf]
        for at_s, together in _windows(ends):
            for _, machine, gpus in together:
                free[machine] += gpus
                if free[machine] >= share > free[machine] - gpus:
                    fitting.append(machine)
            if len(fitting) >= machines:
                return at_s, self._first(fitting, machines)
        return None

    def _first(self, fitting: Sequence[int], machines: int) -> tuple[int, ...]:
        """Take the first machines of the rack where the fewest fit, or of all if no rack has enough."""
        by_rack: dict[int, list[int]] = {}
        for machine in sorted(fitting):
            by_rack.setdefault(self._rack_of[machine], []).append(machine)
        enough = [inside for inside in by_rack.values() if len(inside) >= machines]
        return tuple((min(enough, key=len) if enough else sorted(fitting))[:machines])


def _windows(
    ends: Sequence[tuple[float, int, int]],
) -> list[tuple[float, list[tuple[float, int, int]]]]:
    """Group ends that are close: the first window is half a minute, each further one reaches twice as far."""
    if not ends:
        return []
    edge_s = (ends[0][0] // FIRST_WINDOW_S + 1) * FIRST_WINDOW_S

    def window(end: tuple[float, int, int]) -> int:
        number, reach_s = 0, FIRST_WINDOW_S
        while end[0] > edge_s + reach_s:
            number, reach_s = number + 1, 2 * reach_s
        return number

    groups = [list(group) for _, group in groupby(ends, key=window)]
    return [(group[-1][0], group) for group in groups]
