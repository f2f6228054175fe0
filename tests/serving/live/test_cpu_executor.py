"""The executor on a CPU: the network's own answers, memory that comes back, bad inputs that fail alone."""

import pytest
import torch
from torch import Tensor

from cluster import block, choice, key, path
from hosting import cpu_executor, hosted, images, legs, run_legs, whole_network
from slimsched.models.elastic import Tensors
from slimsched.models.loading import load
from slimsched.models.network import Trained
from slimsched.models.slimresnet.elastic import SlimResNetModel
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.request import Batch, Key, onward
from slimsched.serving.live.batches import FAULTS, ActivationStore, run_batch
from slimsched.serving.live.executor import CpuExecutor


@pytest.fixture(scope="module")
def trained() -> Trained:
    return load()


@pytest.fixture
def model(trained: Trained) -> SlimResNetModel:
    return SlimResNetModel(trained)


def instance(number: int, segment: int, width: float) -> Instance:
    return Instance(id=number, segment=segment, choice=choice(width), memory_bytes=0)


@pytest.mark.parametrize(("precision", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 0.3)])
def test_segment_by_segment_gives_the_whole_networks_logits(
    trained: Trained, precision: torch.dtype, near: float
) -> None:
    executor, raw = cpu_executor(SlimResNetModel(trained, precision=precision)), images(4)
    widths = (0.25, 1.0, 0.5, 0.75)
    for leg, width in zip(legs(widths), widths, strict=True):
        executor.load(instance(leg.segment, leg.segment, width))
    logits = run_legs(executor, widths, raw)
    assert logits.dtype == torch.float32
    assert torch.allclose(logits, whole_network(trained, raw, widths), atol=near)


def test_an_instance_takes_memory_and_gives_all_of_it_back(model: SlimResNetModel) -> None:
    executor = cpu_executor(model)
    assert executor.weight_bytes == 0
    wide, narrow = executor.load(instance(1, 3, 1.0)), executor.load(instance(2, 3, 0.25))
    assert wide > 8 * narrow > 0
    by_slicing = key(3, 0.5, 1.0)  # a width that only the wide one can run
    executor.run(by_slicing, executor.example(by_slicing, 1))
    assert executor.weight_bytes > wide + narrow
    executor.unload(1)
    assert executor.weight_bytes == narrow, "what only the wide one could run went with it"
    executor.unload(2)
    assert executor.weight_bytes == 0


def test_two_instances_of_one_width_share_their_weights(model: SlimResNetModel) -> None:
    executor = cpu_executor(model)
    first = executor.load(instance(1, 2, 0.5))
    assert executor.load(instance(2, 2, 0.5)) == 0
    executor.unload(1)
    assert executor.weight_bytes == first


class Choosy:
    """An executor that refuses white images."""

    lanes = 1

    def run(self, key: Key, inputs: Tensors) -> Tensors:
        (rows,) = inputs
        if (rows == 255).all(dim=3).all(dim=2).all(dim=1).any():
            raise RuntimeError("too bright")
        return (rows.float(),)

    def ends(self, key: Key) -> bool:
        return key.last_segment == 3


def test_a_bad_input_fails_alone_and_not_its_batch() -> None:
    raw = images(5)
    raw[2] = 255
    one, two = block(1, 3), block(2, 2)
    store = ActivationStore()
    store.put([r.id for b in (one, two) for r in b.requests], (raw,))
    batch = Batch(id=1, key=key(0, 0.5), instance=1, blocks=(one, two), size=5)
    before = FAULTS["run one by one"]
    run = run_batch(Choosy(), store, batch)  # type: ignore[arg-type]
    assert FAULTS["run one by one"] == before + 1
    assert [(b.id, len(b.requests)) for b in run.done] == [(1, 2), (2, 2)]
    assert [(b.id, b.requests[0].id, why) for b, why in run.failed] == [(1, 102, "RuntimeError: too bright")]
    (kept,) = store.take([100, 101, 200, 201])
    assert torch.equal(kept, raw[[0, 1, 3, 4]].float())


def test_when_every_input_is_bad_all_fail_and_nothing_is_kept() -> None:
    store, mine = ActivationStore(), block(1, 2)
    store.put([request.id for request in mine.requests], (torch.full((2, 3, 32, 32), 255),))
    for whole in (key(0, 0.5), onward(key(0, 0.5), path(0.5, 0.5, 0.5))):
        also = tuple(range(len(whole.ahead)))
        run = run_batch(
            Choosy(),  # type: ignore[arg-type]
            store,
            Batch(id=1, key=whole, instance=1, blocks=(mine,), size=2, also=also),
        )
        assert (run.done, run.outputs, len(run.failed), len(store)) == ([], [], 2, 0)
        store.put([request.id for request in mine.requests], (torch.full((2, 3, 32, 32), 255),))


def column(*values: float) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1, 1)


def test_activations_are_handed_over_in_the_order_asked_for() -> None:
    store = ActivationStore()
    store.put([1, 2, 3], (column(0.0, 1.0, 2.0),))
    store.put([4, 5], (column(10.0, 11.0),))
    assert store.take([2, 3])[0].flatten().tolist() == [1.0, 2.0]
    assert store.take([5, 1])[0].flatten().tolist() == [11.0, 0.0]
    assert 4 in store.requests()
    store.forget([4, 99])
    assert len(store) == 0


def test_activations_of_several_tensors_stay_together() -> None:
    store = ActivationStore()
    store.put([1, 2, 3], (column(0.0, 1.0, 2.0), torch.tensor([[5], [6], [7]])))
    store.put([4], (column(3.0), torch.tensor([[8]])))
    numbers, marks = store.take([2, 4, 1])
    assert numbers.flatten().tolist() == [1.0, 3.0, 0.0]
    assert marks.tolist() == [[6], [8], [5]]
    assert store.requests() == [3]


def test_a_batch_that_goes_on_gives_what_its_segments_give_one_by_one(model: SlimResNetModel) -> None:
    executor, raw = cpu_executor(model), images(6)
    widths = (0.5, 0.25, 1.0, 0.75)
    whole = onward(key(0, 0.5), path(*widths[1:]))
    for number, leg in enumerate(whole.legs):
        executor.load(instance(number, leg.segment, 1.0))
    store, blocks = ActivationStore(), (block(1, 4), block(2, 2))
    for mine, rows in zip(blocks, (raw[:4], raw[4:]), strict=True):
        store.put([request.id for request in mine.requests], (rows,))
    run = run_batch(
        executor, store, Batch(id=1, key=whole, instance=0, blocks=blocks, size=6, also=(1, 2, 3))
    )
    assert run.outputs == [run_legs(executor, widths, raw).numpy().tobytes()]
    assert len(run.legs_s) == 4
    assert sum(run.legs_s) <= run.busy_s
    assert len(store) == 0


def test_in_a_batch_that_goes_on_a_bad_input_fails_alone(model: SlimResNetModel) -> None:
    class Picky(CpuExecutor):
        def run(self, key: Key, inputs: Tensors) -> Tensors:
            if key.segment == 2 and inputs[0].isnan().any():
                raise RuntimeError("not a number")
            rows, *sure = super().run(key, inputs)
            if key.segment == 0:
                rows = rows.clone()
                rows[inputs[0][:, 0, 0, 0] == 255] = torch.nan
            return (rows, *sure)

    executor, raw = Picky([hosted(model)]), images(3)
    raw[:, 0, 0, 0] = torch.tensor([0, 255, 0], dtype=torch.uint8)
    store, mine = ActivationStore(), block(1, 3)
    store.put([request.id for request in mine.requests], (raw,))
    whole = onward(key(0, 0.25), path(0.25, 0.25, 0.25))
    run = run_batch(
        executor, store, Batch(id=1, key=whole, instance=0, blocks=(mine,), size=3, also=(1, 2, 3))
    )
    ((failed, why),) = run.failed
    assert [request.id for request in failed.requests] == [101]
    assert "not a number" in why
    assert [request.id for one in run.done for request in one.requests] == [100, 102]
