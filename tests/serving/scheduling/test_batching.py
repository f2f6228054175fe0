"""SMDP batching in the local scheduler: events in, commands out."""

from cluster import MODEL, block, flat_profile
from slimsched.kernel.wake import Wake, WakeAt
from slimsched.serving.scheduling.commands import Command, LoadInstance, RunBatch
from slimsched.serving.scheduling.events import BatchFinished, BlockArrived, InstanceLoaded
from slimsched.serving.scheduling.greedy import GreedyScheduler
from slimsched.serving.scheduling.options import SchedulerOptions

GAP_S = 0.01
"""A hundred requests per second arrive, one by one. A batch of any size takes 10 ms and a joule."""


class Server:
    """A scheduler with one instance, after two seconds of steady arrivals; one or two requests wait."""

    def __init__(self, **options: object) -> None:
        chosen: dict[str, object] = {"batch_limit": 8, "batching": "smdp", "joule_s": 0.04, **options}
        self.scheduler = GreedyScheduler(
            SchedulerOptions(**chosen),  # type: ignore[arg-type]
            flat_profile(),
            [MODEL],
        )
        self.now_s = 0.0
        self.number = 0
        self.sizes: list[int] = []
        self.wakes_s: list[float] = []
        for _ in range(200):
            self.carry_out(self.arrive())
            self.now_s += GAP_S
        if not len(self.scheduler.queue):
            self.carry_out(self.arrive())

    def tell(self, event: object) -> list[Command]:
        return self.scheduler.handle(event, now_s=self.now_s)  # type: ignore[arg-type]

    def arrive(self, **what: float) -> list[Command]:
        self.number += 1
        return self.tell(BlockArrived(block=block(self.number, 1, **what)))  # type: ignore[arg-type]

    def carry_out(self, commands: list[Command]) -> None:
        """Load and run at once what is to be loaded and run."""
        for command in commands:
            match command:
                case LoadInstance(instance=instance):
                    self.carry_out(self.tell(InstanceLoaded(instance=instance.id)))
                case RunBatch(batch=batch):
                    self.sizes.append(batch.size)
                    done = BatchFinished(instance=batch.instance, busy_s=0.01, energy_j=1.0)
                    self.carry_out(self.tell(done))
                case WakeAt(at_s=at_s):
                    self.wakes_s.append(at_s)


def ran(commands: list[Command]) -> list[RunBatch]:
    return [command for command in commands if isinstance(command, RunBatch)]


def test_it_waits_for_as_many_as_a_joule_is_worth() -> None:
    """(N − 1) / 2λ + κ / N is least at N = 3 for κ = 0.04 s per joule."""
    assert set(Server().sizes[-20:]) == {3}


def test_without_a_worth_of_energy_it_starts_at_once() -> None:
    assert set(Server(joule_s=0.0).sizes[-20:]) == {1}


def test_it_starts_what_waits_if_no_more_arrive() -> None:
    server = Server()
    assert len(server.scheduler.queue) > 0
    server.sizes.clear()
    last_s = server.now_s
    for at_s in sorted(at_s for at_s in server.wakes_s if at_s > last_s):
        server.now_s = at_s
        server.carry_out(server.tell(Wake()))
    assert server.sizes
    assert server.sizes < [3]


def test_it_says_why_a_batch_waits() -> None:
    server = Server()
    (why,) = server.scheduler.explain().values()
    assert why.endswith("wait for a larger batch")


def test_it_never_waits_until_a_deadline_is_missed() -> None:
    server = Server(order="deadline")
    (run,) = ran(server.arrive(deadline_s=server.now_s + 0.01))
    assert run.batch.size == len(run.batch.blocks)


def test_a_key_that_waits_for_more_does_not_hold_up_others_even_in_plain_fifo() -> None:
    server = Server()
    assert len(server.scheduler.queue) > 0
    server.sizes.clear()
    full = block(999, 8, width=0.75)
    server.carry_out(server.tell(BlockArrived(block=full)))
    assert server.sizes == [8]
    assert server.scheduler.queue.size(block(1, 1).key) > 0
