"""The executor on a CPU: the network's own answers, memory that comes back, bad inputs that fail alone."""

import pytest
import torch
from torch import Tensor

from cluster import block
from slimsched.models.slimresnet.weights import TrainedModel, load
from slimsched.models.width import parse_widths
from slimsched.serving.domain.batch import Batch
from slimsched.serving.domain.instance import Instance
from slimsched.serving.domain.key import KEYS, Key, onward
from slimsched.serving.execution.live.activation_store import ActivationStore
from slimsched.serving.execution.live.batch_run import run_batch
from slimsched.serving.execution.live.cpu_executor import CpuExecutor


@pytest.fixture(scope="module")
def model() -> TrainedModel:
    return load()


def images(count: int) -> Tensor:
    return torch.randint(
        0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def instance(number: int, segment: int, width: float) -> Instance:
    return Instance(id=number, segment=segment, width=width, memory_bytes=0)


@pytest.mark.parametrize(("precision", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 0.3)])
def test_segment_by_segment_gives_the_whole_networks_logits(
    model: TrainedModel, precision: torch.dtype, near: float
) -> None:
    executor, raw = CpuExecutor(model, precision=precision), images(4)
    widths = parse_widths("0.25,1.0,0.5,0.75")
    rows, previous = executor.inputs(raw), None
    for segment, width in enumerate(widths):
        executor.load(instance(segment, segment, width))
        rows, previous = executor.run(KEYS[segment, width, previous], rows), width
    with torch.inference_mode():
        whole = model.net(CpuExecutor(model, precision=torch.float32).inputs(raw), widths)
    assert torch.allclose(rows, whole, atol=near)


def test_an_instance_takes_memory_and_gives_all_of_it_back(model: TrainedModel) -> None:
    executor = CpuExecutor(model)
    assert executor.memory_bytes() == 0
    wide, narrow = executor.load(instance(1, 3, 1.0)), executor.load(instance(2, 3, 0.25))
    assert wide > 8 * narrow > 0
    executor.run(KEYS[3, 0.5, 1.0], executor.activation((1, 256, 8, 8)))  # a width it runs by slicing
    assert executor.memory_bytes() > wide + narrow
    executor.unload(1)
    assert executor.memory_bytes() == narrow, "what only the wide one could run went with it"
    executor.unload(2)
    assert executor.memory_bytes() == 0


def test_two_instances_of_one_width_share_their_weights(model: TrainedModel) -> None:
    executor = CpuExecutor(model)
    first = executor.load(instance(1, 2, 0.5))
    assert executor.load(instance(2, 2, 0.5)) == 0
    executor.unload(1)
    assert executor.memory_bytes() == first


class Choosy:
    """An executor that refuses white images."""

    lanes = element_bytes = 1

    def inputs(self, raw: Tensor) -> Tensor:
        return raw

    def run(self, key: Key, rows: Tensor) -> Tensor:
        if (rows == 255).all(dim=3).all(dim=2).all(dim=1).any():
            raise RuntimeError("too bright")
        return rows.float()


def test_a_bad_input_fails_alone_and_not_its_batch() -> None:
    raw = images(5)
    raw[2] = 255
    key = KEYS[0, 0.5, None]
    one, two = block(1, 3), block(2, 2)
    store = ActivationStore()
    store.put([r.id for b in (one, two) for r in b.requests], raw)
    run = run_batch(Choosy(), store, Batch(id=1, key=key, instance=1, blocks=(one, two), size=5))  # type: ignore[arg-type]
    assert [(b.id, len(b.requests)) for b in run.done] == [(1, 2), (2, 2)]
    assert [(b.id, b.requests[0].id, why) for b, why in run.failed] == [(1, 102, "RuntimeError: too bright")]
    kept = store.take([100, 101, 200, 201])
    assert torch.equal(kept, raw[[0, 1, 3, 4]].float())


def test_activations_are_handed_over_in_the_order_asked_for() -> None:
    store = ActivationStore()
    store.put([1, 2, 3], torch.arange(3.0).view(3, 1, 1, 1))
    store.put([4, 5], torch.arange(10.0, 12.0).view(2, 1, 1, 1))
    assert store.take([2, 3]).flatten().tolist() == [1.0, 2.0]
    assert store.take([5, 1]).flatten().tolist() == [11.0, 0.0]
    assert 4 in store
    store.forget([4, 99])
    assert len(store) == 0


def test_a_batch_that_goes_on_gives_what_its_segments_give_one_by_one(model: TrainedModel) -> None:
    executor, raw = CpuExecutor(model), images(6)
    key = onward(KEYS[0, 0.5, None], (0.25, 1.0, 0.75))
    for number, leg in enumerate(key.legs):
        executor.load(instance(number, leg.segment, 1.0))
    store, blocks = ActivationStore(), (block(1, 4), block(2, 2))
    for mine, rows in zip(blocks, (raw[:4], raw[4:]), strict=True):
        store.put([request.id for request in mine.requests], rows)
    run = run_batch(executor, store, Batch(id=1, key=key, instance=0, blocks=blocks, size=6, also=(1, 2, 3)))
    rows = executor.inputs(raw)
    for leg in key.legs:
        rows = executor.run(leg, rows)
    assert run.logits == rows.float().numpy().tobytes()
    assert len(run.legs_s) == 4
    assert sum(run.legs_s) <= run.busy_s
    assert len(store) == 0


def test_in_a_batch_that_goes_on_a_bad_input_fails_alone(model: TrainedModel) -> None:
    class Picky(CpuExecutor):
        def run(self, key: Key, inputs: Tensor) -> Tensor:
            if key.segment == 2 and inputs.isnan().any():
                raise RuntimeError("not a number")
            return super().run(key, inputs)

        def inputs(self, images: Tensor) -> Tensor:
            normal = super().inputs(images)
            normal[images[:, 0, 0, 0] == 255] = torch.nan
            return normal

    executor, raw = Picky(model), images(3)
    raw[:, 0, 0, 0] = torch.tensor([0, 255, 0], dtype=torch.uint8)
    store, mine = ActivationStore(), block(1, 3)
    store.put([request.id for request in mine.requests], raw)
    key = onward(KEYS[0, 0.25, None], (0.25, 0.25, 0.25))
    run = run_batch(executor, store, Batch(id=1, key=key, instance=0, blocks=(mine,), size=3, also=(1, 2, 3)))
    ((failed, why),) = run.failed
    assert [request.id for request in failed.requests] == [101]
    assert "not a number" in why
    assert [request.id for one in run.done for request in one.requests] == [100, 102]
