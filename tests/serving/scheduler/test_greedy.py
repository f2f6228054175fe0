"""Algorithm 1, line by line: events in, commands out."""

from cluster import MEGABYTE, MODEL, block, choice, flat_profile, key, requests, small_cluster, widths
from slimsched.core.clock import Wake, WakeAt
from slimsched.serving.domain.request import RequestsCancelled, block_of
from slimsched.serving.scheduler.scheduler import (
    BatchFinished,
    BlockArrived,
    Command,
    DropBlock,
    GreedyScheduler,
    InstanceLoaded,
    InstanceUnloaded,
    LoadInstance,
    RunBatch,
    SchedulerOptions,
    Started,
    TelemetrySampled,
    UnloadInstance,
)


class Server:
    """A scheduler with a clock of our own; remembers nothing else."""

    def __init__(self, **options: object) -> None:
        values: dict[str, object] = {"batch_limit": 4, "scale_trigger": 100, **options}
        chosen = SchedulerOptions(**values)  # type: ignore[arg-type]
        self.scheduler = GreedyScheduler(chosen, flat_profile(), [MODEL])

    def tell(self, event: object, now_s: float = 0.0) -> list[Command]:
        commands = self.scheduler.handle(event, now_s=now_s)  # type: ignore[arg-type]
        return [command for command in commands if not isinstance(command, WakeAt)]

    def arrive(self, number: int, count: int, now_s: float = 0.0, **what: object) -> list[Command]:
        return self.tell(BlockArrived(block=block(number, count, **what)), now_s)  # type: ignore[arg-type]

    def load(self, width: float, segment: int = 0, number: int = 90, now_s: float = 0.0) -> int:
        """Have an instance of (segment, width) loaded and free, by running one request through it."""
        previous = 0.25 if segment else None
        loads = self.arrive(number, 1, now_s, segment=segment, width=width, previous=previous)
        assert isinstance(loads[0], LoadInstance)
        instance = loads[0].instance.id
        runs = self.tell(InstanceLoaded(instance=instance), now_s)
        assert isinstance(runs[0], RunBatch)
        self.finish(instance, now_s)
        return instance

    def finish(self, instance: int, now_s: float = 0.0) -> list[Command]:
        return self.tell(BatchFinished(instance=instance, busy_s=0.01, energy_j=1.0), now_s)


def ran(commands: list[Command]) -> list[RunBatch]:
    return [command for command in commands if isinstance(command, RunBatch)]


def test_a_key_that_nothing_fits_gets_an_instance_and_then_runs() -> None:
    server = Server()
    (load,) = server.arrive(1, 3)
    assert isinstance(load, LoadInstance)
    assert (load.instance.segment, load.instance.choice) == (0, choice(0.5))
    (run,) = ran(server.tell(InstanceLoaded(instance=load.instance.id)))
    assert run.batch.size == 3
    assert run.batch.key == key(0, 0.5)
    assert run.why == "all that waited"


def test_a_batch_takes_requests_of_the_heads_key_from_the_whole_queue_up_to_the_limit() -> None:
    server = Server()
    instance = server.load(0.5)
    server.arrive(1, 1)  # runs at once and keeps the instance busy
    server.arrive(2, 3)
    server.arrive(3, 2, width=0.25)
    server.arrive(4, 3)
    (run,) = ran(server.finish(instance))
    assert [b.id for b in run.batch.blocks] == [2, 4]
    assert [len(b.requests) for b in run.batch.blocks] == [3, 1]
    assert run.why == "full"


def test_a_block_larger_than_the_limit_is_split_and_both_parts_keep_its_id() -> None:
    server = Server()
    instance = server.load(0.5)
    (first,) = ran(server.arrive(1, 6))
    (second,) = ran(server.finish(instance))
    assert (first.batch.size, second.batch.size) == (4, 2)
    assert {b.id for b in (*first.batch.blocks, *second.batch.blocks)} == {1}
    ids = [r.id for run in (first, second) for b in run.batch.blocks for r in b.requests]
    assert ids == list(range(100, 106))


def test_an_instance_wider_than_asked_runs_the_width_asked_for_by_slicing() -> None:
    server = Server()
    wide = server.load(1.0)
    (run,) = ran(server.arrive(1, 1, width=0.5))
    assert run.batch.instance == wide
    assert widths(run.batch.key) == (0.5,)


def test_among_free_instances_the_narrowest_that_fits_wins() -> None:
    server = Server()
    for number, width in enumerate((0.25, 0.5, 0.75, 1.0), start=90):  # narrow first: none fits the next
        server.load(width, number=number)
    (run,) = ran(server.arrive(1, 1, width=0.5))
    assert server.scheduler.instances.step(run.batch.instance, "finished", 0.0).choice == choice(0.5)


def test_in_fifo_a_head_that_cannot_run_holds_up_everything_behind_it() -> None:
    server = Server()
    half = server.load(0.5)
    server.load(0.25, segment=1, number=91)
    server.arrive(1, 1)  # the half-width instance is busy now
    server.arrive(2, 1)  # the head: must wait for it
    assert server.arrive(3, 1, segment=1, width=0.25, previous=0.25) == []
    runs = ran(server.finish(half))
    assert [run.batch.blocks[0].id for run in runs] == [2, 3]


def test_in_deadline_order_a_key_that_must_wait_does_not_hold_up_the_others() -> None:
    server = Server(order="deadline")
    server.load(0.5)
    server.load(0.25, segment=1, number=91)
    server.arrive(1, 1)
    server.arrive(2, 1)
    (run,) = ran(server.arrive(3, 1, segment=1, width=0.25, previous=0.25))
    assert run.batch.blocks[0].id == 3


def test_in_deadline_order_the_most_urgent_goes_first() -> None:
    server = Server(order="deadline")
    instance = server.load(0.5)
    server.arrive(1, 4)
    server.arrive(2, 4, deadline_s=9.0)
    server.arrive(3, 4, deadline_s=5.0)
    (run,) = ran(server.finish(instance))
    assert run.batch.blocks[0].id == 3


def test_a_higher_priority_goes_first_when_priorities_count() -> None:
    server = Server(priorities=True)
    instance = server.load(0.5)
    server.arrive(1, 4)
    server.arrive(2, 4)
    server.arrive(3, 4, priority=5)
    (run,) = ran(server.finish(instance))
    assert run.batch.blocks[0].id == 3


def test_busy_instances_are_joined_by_more_only_past_the_trigger_and_up_to_the_cap() -> None:
    server = Server(scale_trigger=6, scale_cap=2)
    server.load(0.5)
    server.arrive(1, 4)
    assert server.arrive(2, 5) == []
    assert "below the scale trigger 6" in server.scheduler.explain()[key(0, 0.5)]
    loads = server.arrive(3, 20)
    assert [type(command) for command in loads] == [LoadInstance, LoadInstance]
    assert server.arrive(4, 20) == [], "what is loading is waited for"


def test_no_instance_is_loaded_past_the_vram_cap() -> None:
    server = Server(vram_cap_bytes=MEGABYTE)
    server.load(0.5)
    server.arrive(1, 1)
    assert server.arrive(2, 1, width=1.0) == []
    assert server.scheduler.explain() == {
        key(0, 1.0): "VRAM: 1000000 bytes in use, 1000000 more would pass the cap 1000000"
    }


def test_no_instance_is_loaded_while_utilization_is_at_the_block() -> None:
    server = Server(utilization_block=0.9)
    server.tell(TelemetrySampled(utilization=0.9, power_w=100.0, vram_bytes=0))
    assert server.arrive(1, 1) == []
    assert "utilization 90% is not below the block 90%" in server.scheduler.explain()[key(0, 0.5)]
    (load,) = server.tell(TelemetrySampled(utilization=0.89, power_w=100.0, vram_bytes=0))
    assert isinstance(load, LoadInstance)


def test_an_instance_idle_for_long_enough_is_unloaded_and_its_memory_comes_back() -> None:
    server = Server(idle_unload_s=5.0)
    instance = server.load(0.5, now_s=1.0)
    assert server.tell(Wake(), now_s=5.9) == []
    assert server.scheduler.instances.memory_bytes == MEGABYTE
    assert server.tell(Wake(), now_s=6.0) == [UnloadInstance(instance=instance)]
    server.tell(InstanceUnloaded(instance=instance), now_s=6.1)
    assert server.scheduler.instances.memory_bytes == 0


def test_a_busy_instance_is_never_unloaded() -> None:
    server = Server(idle_unload_s=5.0)
    server.load(0.5)
    server.arrive(1, 1)
    assert server.tell(Wake(), now_s=100.0) == []


def test_it_asks_to_be_woken_when_the_next_instance_may_be_due() -> None:
    server = Server(idle_unload_s=5.0)
    server.load(0.5)
    wakes = [c for c in server.scheduler.handle(Wake(), now_s=2.0) if isinstance(c, WakeAt)]
    assert wakes == [WakeAt(at_s=5.0)]


def test_early_drop_gives_up_what_can_no_longer_be_in_time_and_says_why() -> None:
    server = Server(early_drop=True)
    server.load(0.5)
    commands = server.arrive(1, 2, now_s=1.0, deadline_s=1.005)
    assert isinstance(commands[0], DropBlock)
    assert commands[0].reason == "deadline out of reach"
    (run,) = ran(server.arrive(2, 2, now_s=1.0, deadline_s=1.02))
    assert run.batch.size == 2


def test_a_late_request_takes_no_request_of_its_block_with_it() -> None:
    server = Server(early_drop=True)
    server.load(0.5)
    hasty, patient = requests(1, first=1, deadline_s=1.005), requests(2, first=2)
    mixed = block_of(7, key(0, 0.5), hasty + patient)
    commands = server.tell(BlockArrived(block=mixed), now_s=1.0)
    (drop,) = [one for one in commands if isinstance(one, DropBlock)]
    assert drop.block.requests == hasty
    (run,) = ran(commands)
    assert [request for block in run.batch.blocks for request in block.requests] == list(patient)


def test_what_is_late_is_judged_by_how_long_batches_took() -> None:
    server = Server(early_drop=True)
    instance = server.load(0.5)
    for number in range(1, 20):  # each takes 20 ms, where the profile says 10
        (run,) = ran(server.arrive(number, 1, now_s=1.0))
        server.tell(BatchFinished(instance=run.batch.instance, busy_s=0.02, energy_j=1.0), now_s=1.0)
    commands = server.arrive(20, 2, now_s=1.0, deadline_s=1.015)
    assert isinstance(commands[0], DropBlock)
    (run,) = ran(server.arrive(21, 2, now_s=1.0, deadline_s=1.025))
    assert run.batch.instance == instance


def test_a_batch_is_no_larger_than_its_most_urgent_request_allows() -> None:
    options = SchedulerOptions(batch_limit=16, order="deadline", early_drop=True)
    rising = small_cluster((0.02,), batch_limit=16).profiles[0]
    scheduler = GreedyScheduler(options, rising, [MODEL])
    one = key(0, 0.5)
    alone_s, together_s = rising.latency_s(one, 4), rising.latency_s(one, 16)
    load, *_ = scheduler.handle(BlockArrived(block=block(1, 4, deadline_s=together_s / 2)), now_s=0.0)
    assert isinstance(load, LoadInstance)
    for number in (2, 3, 4):
        scheduler.handle(BlockArrived(block=block(number, 4, deadline_s=10.0)), now_s=0.0)
    assert alone_s < together_s / 2
    (run,) = ran(scheduler.handle(InstanceLoaded(instance=load.instance.id), now_s=0.0))
    assert 4 <= run.batch.size < 16
    assert rising.latency_s(one, run.batch.size) <= together_s / 2


def test_resident_widths_are_loaded_at_the_start_and_stay() -> None:
    server = Server(resident=("1.0",), idle_unload_s=1.0)
    loads = server.tell(Started())
    assert [(c.instance.segment, c.instance.choice) for c in loads if isinstance(c, LoadInstance)] == [
        (segment, choice(1.0)) for segment in range(4)
    ]
    for load in loads:
        assert isinstance(load, LoadInstance)
        server.tell(InstanceLoaded(instance=load.instance.id))
    (run,) = ran(server.arrive(1, 2, width=0.25))
    assert widths(run.batch.key) == (0.25,)
    server.finish(run.batch.instance)
    assert server.tell(Wake(), now_s=100.0) == []
    assert len(server.scheduler.instances) == 4


def test_a_key_that_goes_on_holds_an_instance_of_every_segment_until_the_batch_is_done() -> None:
    server = Server(resident=("0.5",))
    for load in server.tell(Started()):
        assert isinstance(load, LoadInstance)
        server.tell(InstanceLoaded(instance=load.instance.id))
    (run,) = ran(server.arrive(1, 3, ahead=(0.5, 0.25, 0.5)))
    assert widths(run.batch.key) == (0.5, 0.5, 0.25, 0.5)
    assert len({run.batch.instance, *run.batch.also}) == 4
    assert not ran(server.arrive(2, 1, segment=3, previous=0.5)), "the last segment's instance is taken too"
    (after,) = ran(server.finish(run.batch.instance))
    assert after.batch.instance == run.batch.also[-1]


def test_a_key_that_goes_on_runs_as_far_as_instances_are_free() -> None:
    server = Server()
    first, second = server.load(0.5), server.load(0.5, segment=1, number=91)
    (run,) = ran(server.arrive(1, 2, ahead=(0.5, 0.5, 0.5)))
    assert widths(run.batch.key) == (0.5, 0.5)
    assert (run.batch.instance, run.batch.also) == (first, (second,))


def test_requests_that_go_on_differently_share_no_batch() -> None:
    server = Server()
    instance = server.load(0.5)
    server.arrive(1, 1)
    server.arrive(2, 1, ahead=(0.5, 0.5, 0.5))
    server.arrive(3, 1)
    (run,) = ran(server.finish(instance))
    assert [one.id for one in run.batch.blocks] == [2]


def test_a_batch_takes_in_about_what_it_can_run_in_its_time() -> None:
    longest_s = flat_profile().latency_s(key(0, 0.5), 21)
    server = Server(batch_limit=64, batch_limit_s=longest_s)
    instance = server.load(0.5)
    (run,) = ran(server.arrive(1, 32))
    assert run.batch.size == 24, "21, in whole eights"
    (rest,) = ran(server.finish(instance))
    assert rest.batch.size == 8


def test_recalled_requests_are_left_out_and_the_others_of_their_block_still_run() -> None:
    server = Server(batch_limit=16)
    instance = server.load(0.5)
    (busy,) = ran(server.arrive(1, 2))
    server.arrive(2, 3)
    server.arrive(3, 1, width=0.25)
    dropped = [
        c for c in server.tell(RequestsCancelled(requests=(100, 201, 300))) if isinstance(c, DropBlock)
    ]
    assert [(one.block.id, [r.id for r in one.block.requests]) for one in dropped] == [(2, [201]), (3, [300])]
    assert {one.reason for one in dropped} == {"cancelled"}
    assert [request.id for one in busy.batch.blocks for request in one.requests] == [100, 101], "had begun"
    (run,) = ran(server.finish(instance))
    assert [request.id for one in run.batch.blocks for request in one.requests] == [200, 202]
    assert not ran(server.finish(instance))
    assert not server.scheduler.is_busy
