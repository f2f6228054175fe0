"""Whatever arrives: memory stays under its cap, keys do not mix, best fit is smallest, nothing is lost."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from cluster import MEGABYTE, MODEL, flat_profile, toy_model
from slimsched.core.clock import Timeline
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.request import Batch, Key, Request, block_of, ids_of
from slimsched.serving.gateway.messages import BlockDropped, SegmentFinished
from slimsched.serving.scheduler.scheduler import (
    BatchFinished,
    InstanceLoaded,
    InstanceUnloaded,
    LoadInstance,
    RunBatch,
    SchedulerOptions,
    UnloadInstance,
)
from slimsched.serving.simulated.server import SimulatedServer

FAMILY = toy_model("family", segments=[("s", "m", "l")]).numbered(1)
EXITS = toy_model(
    "exits", segments=[("exit", "on"), ("exit", "on"), ("a", "b")], plans=[(0,), (1, 0), (1, 1, 0), (1, 1, 1)]
).numbered(2)
MODELS = [MODEL, FAMILY, EXITS]
"""Nested and following the choice before, neither with one segment, neither with plans that end early."""

KEYS = [key for model in MODELS for key in model.keys.values()]

options = st.builds(
    SchedulerOptions,
    batch_limit=st.integers(1, 6),
    vram_cap_bytes=st.integers(1, 8).map(lambda count: count * MEGABYTE),
    idle_unload_s=st.floats(0.005, 1.0),
    scale_trigger=st.integers(1, 10),
    scale_cap=st.integers(1, 3),
    order=st.sampled_from(["fifo", "deadline"]),
    early_drop=st.booleans(),
    priorities=st.booleans(),
)
arrivals = st.lists(
    st.tuples(
        st.floats(0.0, 0.5),
        st.sampled_from(KEYS),
        st.integers(1, 9),
        st.floats(0.01, 2.0),
        st.integers(0, 2),
    ),
    max_size=25,
)


class Watch:
    """An observer that holds every entry against the rules."""

    def __init__(self, scheduler: SchedulerOptions) -> None:
        self.options = scheduler
        self.memory = 0
        self.instances: dict[int, Instance] = {}
        self.free: set[int] = set()

    def observe(self, now_s: float, machine: str, event: Struct, commands: Sequence[Struct]) -> None:
        match event:
            case InstanceLoaded(instance=number) | BatchFinished(instance=number):
                self.free.add(number)
            case InstanceUnloaded(instance=number):
                self.memory -= self.instances.pop(number).memory_bytes
        for command in commands:
            match command:
                case LoadInstance(instance=instance):
                    self.instances[instance.id] = instance
                    self.memory += instance.memory_bytes
                    assert self.memory <= self.options.vram_cap_bytes
                case UnloadInstance(instance=number):
                    self.free.remove(number)
                case RunBatch(batch=batch):
                    self.check(batch)
                    self.free.remove(batch.instance)

    def check(self, batch: Batch) -> None:
        assert batch.size == sum(block.examples for block in batch.blocks) <= self.options.batch_limit
        keys = [block.key for block in batch.blocks]
        assert len({(key.model, key.segment, key.previous) for key in keys}) == 1
        (asked,) = {key.choice for key in keys}
        fits = [self.instances[n].choice for n in self.free if self.fits(self.instances[n], keys[0], asked)]
        assert self.instances[batch.instance].choice == min(fits)
        assert batch.key.choice == asked

    def fits(self, instance: Instance, key: Key, asked: int) -> bool:
        """Only in a nested model does an instance of a wider choice stand in."""
        same_segment = (instance.model, instance.segment) == (key.model, key.segment)
        wide_enough = instance.choice >= asked if MODELS[key.model].spec.nested else instance.choice == asked
        return same_segment and wide_enough


class Gateway:
    """Counts what comes back."""

    def __init__(self) -> None:
        self.back: list[int] = []

    def report(self, event: SegmentFinished | BlockDropped) -> None:
        if isinstance(event, BlockDropped):
            assert event.reason
            self.back += ids_of(event.block.requests)
        else:
            self.back += [number for block in event.blocks for number in ids_of(block.requests)]


@settings(max_examples=200, deadline=None)
@given(options, arrivals, st.booleans())
def test_every_request_comes_back_exactly_once_and_no_rule_is_broken(
    scheduler: SchedulerOptions, blocks: list[tuple[float, Key, int, float, int]], together: bool
) -> None:
    timeline, gateway, watch = Timeline(), Gateway(), Watch(scheduler)
    server = SimulatedServer(
        index=0,
        name="server-0",
        profile=flat_profile(latency_s=0.003, models=MODELS),
        models=MODELS,
        options=scheduler,
        timeline=timeline,
        report=gateway.report,
        observers=[watch],
    )
    sent = 0
    for number, (at_s, key, count, patience_s, priority) in enumerate(blocks):
        call = Request(
            id=sent,
            arrival_s=at_s,
            deadline_s=at_s + patience_s,
            priority=priority,
            model=key.model,
            count=count,
        )
        members = (call,) if together else tuple(call.each())
        sent += count
        timeline.at(at_s, server.receive, block_of(number, key, members))
    while timeline.next_s() < 60.0:
        timeline.advance()
    assert sorted(gateway.back) == list(range(sent))
