"""Several batches under way on a device: each comes back once, in whatever order they end."""

import asyncio
import threading
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from cluster import block, key
from slimsched.models.elastic import Tensors
from slimsched.serving.domain.request import Batch, Key
from slimsched.serving.live.batches import FAULTS, ActivationStore, BatchRun, Lanes, OverlappingLanes
from slimsched.serving.live.executor import Executor


class Slow:
    """Under way until it has been looked at often enough."""

    def __init__(self, rows: Tensors, looks: int) -> None:
        self._rows, self._looks = rows, looks

    legs_s = ()

    def ready(self) -> bool:
        self._looks -= 1
        return self._looks <= 0

    def wait(self) -> list[Tensors]:
        return [(self._rows[0] * 2,)]


class Device(Executor):
    """An overlapping device on which later batches are done sooner; it refuses negative rows."""

    lanes, device = 2, torch.device("cpu")

    def __init__(self) -> None:
        super().__init__([])
        self._next_looks = 40

    def launch(
        self,
        legs: Sequence[Key],
        pieces: Sequence[Tensors],
        instances: Sequence[int] = (),
        *,
        keep: bool = False,
    ) -> Slow:
        (inputs,) = pieces
        if (inputs[0] < 0).any():
            raise RuntimeError("negative")
        self._next_looks -= 10
        return Slow(inputs, self._next_looks)

    def run(self, key: Key, inputs: Tensors) -> Tensors:
        return self.launch((key,), [inputs]).wait()[-1]

    def ends(self, key: Key) -> bool:
        return False

    def load(self, instance: object) -> int:
        return 0

    def unload(self, instance: int) -> None: ...


async def run_all(rows: list[Tensor], device: Device | None = None) -> tuple[list[BatchRun], ActivationStore]:
    store, found = ActivationStore(), list[BatchRun]()
    lanes = OverlappingLanes(2, lambda error: pytest.fail(str(error)))
    device, middle = device or Device(), key(1, 0.5, 0.5)
    for number, one in enumerate(rows, start=1):
        mine = block(number, len(one))
        store.put([request.id for request in mine.requests], (one,))
        batch = Batch(id=number, key=middle, instance=1, blocks=(mine,), size=len(one))
        lanes.run_batch(device, store, batch, found.append)
    while lanes.under_way:
        await asyncio.sleep(0.001)
    return found, store


def test_every_batch_comes_back_once_and_its_rows_wait_in_the_store() -> None:
    found, store = asyncio.run(run_all([torch.full((2, 1), float(n)) for n in range(5)]))
    assert sorted(run.done[0].id for run in found) == [1, 2, 3, 4, 5]
    assert store.take([300, 301])[0].flatten().tolist() == [4.0, 4.0]


class Clumsy(Device):
    """A device that cannot launch anything, but runs it."""

    def launch(self, *given: object, **named: object) -> Slow:
        raise RuntimeError("no graph")

    def run(self, key: Key, inputs: Tensors) -> Tensors:
        return inputs


def test_a_batch_that_is_not_launched_runs_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    FAULTS.clear()
    found, _ = asyncio.run(run_all([torch.ones(2, 1), torch.ones(2, 1)], Clumsy()))
    assert [len(run.done) for run in found] == [1, 1]
    assert FAULTS == {"not launched": 2}
    assert [record.getMessage() for record in caplog.records] == [
        "a batch of 2 was not launched; later ones are only counted"
    ]


def test_a_bad_input_fails_alone() -> None:
    (run,), store = asyncio.run(run_all([torch.tensor([[1.0], [-1.0], [3.0]])]))
    assert [(failed.requests[0].id, why) for failed, why in run.failed] == [(101, "RuntimeError: negative")]
    assert store.take([100, 102])[0].flatten().tolist() == [2.0, 6.0]


@pytest.mark.parametrize("kind", [Lanes, OverlappingLanes])
def test_what_is_forgotten_after_a_batch_was_given_to_a_lane_still_runs(kind: type[Lanes]) -> None:
    async def run() -> list[BatchRun]:
        store, found, free = ActivationStore(), list[BatchRun](), threading.Event()
        lanes = kind(1, lambda error: pytest.fail(str(error)))
        if kind is Lanes:
            lanes.run(free.wait, lambda _: None)
        mine = block(1, 3)
        ids = [request.id for request in mine.requests]
        store.put(ids, (torch.ones(3, 1),))
        batch = Batch(id=1, key=key(1, 0.5, 0.5), instance=1, blocks=(mine,), size=3)
        lanes.run_batch(Device(), store, batch, found.append)
        store.forget(ids)  # answered meanwhile, with what it had
        free.set()
        while lanes.under_way:
            await asyncio.sleep(0.001)
        return found

    (done,) = asyncio.run(run())
    assert [one.id for one in done.done] == [1]
