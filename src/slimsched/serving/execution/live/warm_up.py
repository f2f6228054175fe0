"""Warm-up: runs everything once before a server reports ready, so that no request pays for it."""

from collections.abc import Sequence

from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.execution.live.executor import Executor, OverlappingExecutor


def warm_up(executor: Executor, models: Sequence[ServedModel], batch: int) -> None:
    """Run the narrowest, a middle and the widest plan with one example and with a full batch.

    Instances loaded for this are unloaded afterwards.
    """
    for model in models:
        for plan in sorted({model.spec.narrowest, model.tree.middle, model.spec.widest}):
            legs = model.legs(plan)
            slots = [
                Instance(id=-1 - n, segment=leg.segment, choice=leg.choice, memory_bytes=0, model=leg.model)
                for n, leg in enumerate(legs)
            ]
            for slot in slots:
                executor.load(slot)
            for count in (1, batch):
                rows = executor.example(legs[0], count)
                for leg in legs:
                    rows = executor.run(leg, rows)
            for slot in slots:
                executor.unload(slot.id)


def touch(executor: Executor, models: Sequence[ServedModel], loaded: Sequence[Instance]) -> None:
    """Run one example through every key of the loaded instances, because segments are made on first use.

    Where the device works in parallel with the host, whole plans are made ready too.
    """
    for model in models:
        for key in model.keys.values():
            if any(_fits(one, key.place, nested=model.spec.nested) for one in loaded):
                executor.run(key, executor.example(key, 1))
    if isinstance(executor, OverlappingExecutor):
        executor.prepare_plans()


def _fits(instance: Instance, place: tuple[int, int, int], *, nested: bool) -> bool:
    model, segment, choice = place
    same = (instance.model, instance.segment) == (model, segment)
    return same and (instance.choice == choice or (nested and instance.choice > choice))
