"""What a machine's own check finds: each way in which its books can go wrong."""

from collections.abc import Callable

import pytest

from cluster import MODEL, block, flat_profile, requests, small_cluster
from slimsched.core.config import SlimError
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import GatewayOptions, RequestsArrived
from slimsched.serving.gateway.observation import Observation, Route
from slimsched.serving.routers.autoscaler import AutoscaleOptions, Autoscaler
from slimsched.serving.scheduler.scheduler import (
    BlockArrived,
    GreedyScheduler,
    InstanceLoaded,
    LoadInstance,
    RunBatch,
    SchedulerOptions,
)

CLUSTER = small_cluster((10.0, 10.0))


class FourAndWait:
    """Sends four requests to the first server, and lets the others wait."""

    has_sent = False

    def route(self, seen: Observation) -> Route | None:
        before, self.has_sent = self.has_sent, True
        return None if before else Route(0, 0, 4, "first")


def gateway() -> Gateway:
    made = Gateway(CLUSTER, FourAndWait(), GatewayOptions(step_s=0.0, early_drop=True))
    made.handle(RequestsArrived(requests=requests(8, deadline_s=1.0)), now_s=0.0)
    made.validate()
    return made


def scheduler() -> GreedyScheduler:
    made = GreedyScheduler(SchedulerOptions(), flat_profile(), [MODEL])
    (load, *_) = made.handle(BlockArrived(block=block(1, 4)), now_s=0.0)
    assert isinstance(load, LoadInstance)
    (run, *_) = made.handle(InstanceLoaded(instance=load.instance.id), now_s=0.0)
    assert isinstance(run, RunBatch)
    made.handle(BlockArrived(block=block(2, 4)), now_s=0.0)
    made.validate()
    return made


def lose_a_sent_block(one: Gateway) -> None:
    one._sent._blocks.clear()


def miscount_the_queue(one: Gateway) -> None:
    one.seen.fifo += 1


def miscount_what_a_server_has(one: Gateway) -> None:
    one.seen.outstanding[0] -= 1


def miscount_its_work(one: Gateway) -> None:
    one.seen.backlog_s[0] = 5.0


def forget_who_is_up(one: Gateway) -> None:
    one.seen.alive_ids = [0]


def count_work_of_nobody(one: Gateway) -> None:
    assert one.admission is not None
    one.admission._ahead.add(requests(1, first=99, deadline_s=1.0)[0], 1.0)


def answer_twice(one: Gateway) -> None:
    one.in_system -= 1


@pytest.mark.parametrize(
    "wrong",
    [
        lose_a_sent_block,
        miscount_the_queue,
        miscount_what_a_server_has,
        miscount_its_work,
        forget_who_is_up,
        count_work_of_nobody,
        answer_twice,
    ],
)
def test_a_gateway_finds_what_is_wrong_with_its_books(wrong: Callable[[Gateway], None]) -> None:
    one = gateway()
    wrong(one)
    with pytest.raises(SlimError, match="inconsistent"):
        one.validate()


def forget_a_batch(one: GreedyScheduler) -> None:
    one._running.clear()


def miscount_a_key(one: GreedyScheduler) -> None:
    one.queue._sizes[next(iter(one.queue))] += 1


def miscount_memory(one: GreedyScheduler) -> None:
    one.instances.memory_bytes += 1


def lose_an_instance(one: GreedyScheduler) -> None:
    one.instances._by_segment[0][0].clear()


def queue_what_runs(one: GreedyScheduler) -> None:
    one.queue.push(block(1, 4))


def load_too_much(one: GreedyScheduler) -> None:
    one.instances.add((0, 0, 0), one.options.vram_cap_bytes, 0.0)


@pytest.mark.parametrize(
    "wrong",
    [forget_a_batch, miscount_a_key, miscount_memory, lose_an_instance, queue_what_runs, load_too_much],
)
def test_a_scheduler_finds_what_is_wrong_with_its_books(wrong: Callable[[GreedyScheduler], None]) -> None:
    one = scheduler()
    wrong(one)
    with pytest.raises(SlimError, match="inconsistent"):
        one.validate()


def test_an_autoscaler_is_not_crowded_and_idle_at_once() -> None:
    one = Autoscaler(AutoscaleOptions())
    one.validate()
    one._crowded_s = one._idle_s = 1.0
    with pytest.raises(SlimError, match="inconsistent"):
        one.validate()
