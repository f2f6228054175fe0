"""The instances of one device: which are loaded, free or busy, and how much memory they use."""

from collections.abc import Sequence

from slimsched.serving.domain.instance import Instance, InstanceState, next_state
from slimsched.serving.domain.key import Key
from slimsched.serving.domain.served_model import ServedModel


class _Slot:
    """An instance, its state, and when it was last used."""

    __slots__ = ("instance", "last_used_s", "state")

    def __init__(self, instance: Instance, now_s: float) -> None:
        self.instance = instance
        self.state = InstanceState.LOADING
        self.last_used_s = now_s


class Fleet:
    """The list I of Algorithm 1, and the memory its instances use."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._nested: dict[int, bool] = {}
        self._slots: dict[int, _Slot] = {}
        self._by_segment: dict[int, list[list[_Slot]]] = {}
        self._next_id = 0
        self.memory_bytes = 0
        self.loaded_bytes = 0  # without those that are still loading
        for model in models:
            self.know(model)

    def __len__(self) -> int:
        return len(self._slots)

    def know(self, model: ServedModel) -> None:
        """Be ready for instances of one more model."""
        self._nested[model.number] = model.spec.nested
        self._by_segment[model.number] = [[] for _ in range(model.segments)]

    def of_model(self, model: int) -> list[tuple[Instance, InstanceState]]:
        """List the instances of a model, with their states."""
        return [(slot.instance, slot.state) for slots in self._by_segment[model] for slot in slots]

    def instances(self) -> list[Instance]:
        """List all instances that are loaded, loading or unloading."""
        return [slot.instance for slot in self._slots.values()]

    def add(self, place: tuple[int, int, int], memory_bytes: int, now_s: float) -> Instance:
        """Add an instance for (model, segment, choice) that starts to load; its memory counts from now on."""
        self._next_id += 1
        model, segment, choice = place
        instance = Instance(
            id=self._next_id, segment=segment, choice=choice, memory_bytes=memory_bytes, model=model
        )
        slot = _Slot(instance, now_s)
        self._slots[instance.id] = slot
        self._by_segment[model][segment].append(slot)
        self.memory_bytes += memory_bytes
        return instance

    def step(self, instance_id: int, step: str, now_s: float) -> Instance:
        """Move an instance along its state table."""
        slot = self._slots[instance_id]
        slot.state = next_state(slot.instance, slot.state, step)
        slot.last_used_s = now_s
        if step == "loaded":
            self.loaded_bytes += slot.instance.memory_bytes
        elif slot.state is InstanceState.GONE:
            del self._slots[instance_id]
            self._by_segment[slot.instance.model][slot.instance.segment].remove(slot)
            self.memory_bytes -= slot.instance.memory_bytes
            self.loaded_bytes -= slot.instance.memory_bytes
        return slot.instance

    def free_best_fit(self, key: Key) -> Instance | None:
        """FINDFREEBESTFIT: return the free instance of the segment with the narrowest choice that fits."""
        best: Instance | None = None
        choice, nested, free = key.choice, self._nested[key.model], InstanceState.FREE
        for slot in self._by_segment[key.model][key.segment]:
            instance = slot.instance
            if (
                slot.state is free
                and (instance.choice == choice or (nested and instance.choice > choice))
                and (best is None or instance.choice < best.choice)
            ):
                best = instance
        return best

    def fitting(self, key: Key) -> tuple[int, int]:
        """Count the instances that could run this key: how many are busy, and how many are loading."""
        nested = self._nested[key.model]
        states = [
            slot.state
            for slot in self._by_segment[key.model][key.segment]
            if slot.instance.choice == key.choice or (nested and slot.instance.choice > key.choice)
        ]
        return states.count(InstanceState.BUSY), states.count(InstanceState.LOADING)

    def is_unloading(self) -> bool:
        """Whether any instance is unloading."""
        return any(slot.state is InstanceState.UNLOADING for slot in self._slots.values())

    def idle(self) -> list[tuple[float, Instance]]:
        """List free instances with the time they were last used, longest idle first."""
        slots = [s for s in self._slots.values() if s.state is InstanceState.FREE]
        return sorted(((s.last_used_s, s.instance) for s in slots), key=lambda pair: (pair[0], pair[1].id))
