"""The instances of one device: which are loaded, free, busy, and what memory they hold."""

from slimsched.models.width import SEGMENTS
from slimsched.serving.domain.instance import Instance, InstanceState, next_state


class _Slot:
    """An instance with its state and when it was last used."""

    __slots__ = ("instance", "last_used_s", "state")

    def __init__(self, instance: Instance, now_s: float) -> None:
        self.instance = instance
        self.state = InstanceState.LOADING
        self.last_used_s = now_s


class Fleet:
    """Algorithm 1's list I, with the memory it accounts for."""

    def __init__(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._by_segment: list[list[_Slot]] = [[] for _ in range(SEGMENTS)]
        self._next_id = 0
        self.memory_bytes = 0

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, segment: int, width: float, memory_bytes: int, now_s: float) -> Instance:
        """Begin to load a new instance; its memory counts from now on."""
        self._next_id += 1
        instance = Instance(id=self._next_id, segment=segment, width=width, memory_bytes=memory_bytes)
        slot = _Slot(instance, now_s)
        self._slots[instance.id] = slot
        self._by_segment[segment].append(slot)
        self.memory_bytes += memory_bytes
        return instance

    def step(self, instance_id: int, step: str, now_s: float) -> Instance:
        """Move an instance along its state table."""
        slot = self._slots[instance_id]
        slot.state = next_state(slot.instance, slot.state, step)
        slot.last_used_s = now_s
        if slot.state is InstanceState.GONE:
            del self._slots[instance_id]
            self._by_segment[slot.instance.segment].remove(slot)
            self.memory_bytes -= slot.instance.memory_bytes
        return slot.instance

    def free_best_fit(self, segment: int, width: float) -> Instance | None:
        """FINDFREEBESTFIT: the free instance of the segment with the smallest width ≥ the one asked for."""
        best: Instance | None = None
        for slot in self._by_segment[segment]:
            instance = slot.instance
            if (
                slot.state is InstanceState.FREE
                and instance.width >= width
                and (best is None or instance.width < best.width)
            ):
                best = instance
        return best

    def fitting(self, segment: int, width: float) -> tuple[int, int]:
        """How many instances that could run this width are busy, and how many are loading."""
        states = [s.state for s in self._by_segment[segment] if s.instance.width >= width]
        return states.count(InstanceState.BUSY), states.count(InstanceState.LOADING)

    def is_unloading(self) -> bool:
        """Whether memory is on its way back."""
        return any(slot.state is InstanceState.UNLOADING for slot in self._slots.values())

    def idle(self) -> list[tuple[float, Instance]]:
        """Free instances with the time they were last used, longest idle first."""
        slots = [s for s in self._slots.values() if s.state is InstanceState.FREE]
        return sorted(((s.last_used_s, s.instance) for s in slots), key=lambda pair: (pair[0], pair[1].id))
