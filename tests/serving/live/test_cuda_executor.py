"""The executor on a CUDA device: what needs no device is tested everywhere, the rest where there is one."""

import pytest
import torch

from cluster import choice, key, path
from hosting import hosted, images, legs, whole_network
from slimsched.core.config import SlimError
from slimsched.models.elastic import Tensors
from slimsched.models.loading import load
from slimsched.models.network import Trained
from slimsched.models.slimresnet.elastic import SlimResNetModel
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.request import Batch, Key, Request, block_of, onward
from slimsched.serving.live.batches import ActivationStore, BatchRun, BatchUnderWay, run_batch
from slimsched.serving.live.cuda import BUCKETS, OFTEN, CudaExecutor, bucket_for, buckets_up_to, cuda_device

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def model() -> Trained:
    return load()


@pytest.fixture(scope="module")
def executor(model: Trained) -> CudaExecutor:
    return CudaExecutor([hosted(SlimResNetModel(model), cuda_device())], batch_limit=16)


def instance(number: int, segment: int, width: float) -> Instance:
    return Instance(id=number, segment=segment, choice=choice(width), memory_bytes=0)


def test_a_batch_is_padded_to_the_next_bucket() -> None:
    assert [bucket_for(size, BUCKETS) for size in (1, 2, 3, 16, 17, 255, 256)] == [1, 2, 4, 16, 32, 256, 256]


def test_only_the_buckets_that_a_batch_limit_needs_are_captured() -> None:
    assert buckets_up_to(1) == (1,)
    assert buckets_up_to(12) == (1, 2, 4, 8, 16)
    assert buckets_up_to(16) == (1, 2, 4, 8, 16)
    assert buckets_up_to(1000) == BUCKETS
    with pytest.raises(SlimError, match="give 1 or more"):
        buckets_up_to(0)


def test_hosted_segments_give_the_whole_networks_logits(model: Trained) -> None:
    segments = hosted(SlimResNetModel(model, precision=torch.float32))
    widths = (0.25, 1.0, 0.5, 0.75)
    rows: Tensors = (images(3),)
    for leg in legs(widths):
        rows = segments.segment(leg)(rows)
    assert torch.allclose(rows[0], whole_network(model, images(3), widths), atol=1e-4)


def test_layers_that_do_not_depend_on_the_previous_width_are_there_once(model: Trained) -> None:
    segments = hosted(SlimResNetModel(model, precision=torch.bfloat16))
    for one in segments.served.keys.values():
        segments.segment(one)
    alone = sum(tensor.numel() * 2 for tensor in model.net.parameters())
    assert len(segments.made()) == 52
    assert 0 < segments.weight_bytes() < 3 * alone, "52 keys take less than three networks"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_the_error_says_what_to_do() -> None:
    with pytest.raises(SlimError, match="host kind 'cpu'"):
        cuda_device()


@needs_cuda
@pytest.mark.parametrize("count", [1, 3, 16, 40])
def test_graphs_give_the_networks_logits_for_any_batch(
    model: Trained, executor: CudaExecutor, count: int
) -> None:
    widths = (0.25, 1.0, 0.5, 0.75)
    for segment, width in enumerate(widths):
        executor.load(instance(segment, segment, width))
    rows: Tensors = (images(count),)
    for leg in legs(widths):
        rows = executor.run(leg, rows)
    for segment in range(4):
        executor.unload(segment)
    wanted = whole_network(model, images(count), widths)
    assert (rows[0] - wanted).norm() / wanted.norm() < 0.05


@needs_cuda
def test_an_instance_takes_memory_and_the_driver_gets_all_of_it_back(executor: CudaExecutor) -> None:
    executor.load(instance(1, 1, 1.0))
    executor.unload(1)
    before = torch.cuda.mem_get_info()[0]
    assert executor.weight_bytes == 0, "with nothing loaded the device holds no weights"
    size = executor.load(instance(1, 1, 1.0))
    assert size > executor.weight_bytes > 0
    taken = before - torch.cuda.mem_get_info()[0]
    assert taken >= size - executor.weight_bytes, "small weights fit into memory that was there already"
    executor.unload(1)
    assert executor.weight_bytes == 0
    assert torch.cuda.mem_get_info()[0] == before


@needs_cuda
def test_instances_that_come_and_go_never_share_a_stream(executor: CudaExecutor) -> None:
    half = key(1, 0.5, 0.5)
    executor.load(instance(0, 1, 0.5))
    rows = executor.example(half, 4)
    wanted = executor.run(half, rows)[0].clone()
    for number in range(1, 40):  # PyTorch has 32 streams
        executor.load(instance(number, 1, 0.25))
        assert torch.equal(executor.run(half, rows)[0], wanted)
        if number > 2:
            executor.unload(number - 2)
    for number in (0, 38, 39):
        executor.unload(number)


@needs_cuda
def test_weights_leave_with_the_last_instance_that_can_run_them_and_come_back_the_same(
    executor: CudaExecutor,
) -> None:
    half = key(1, 0.5, 0.5)
    executor.load(instance(1, 1, 0.5))
    narrow, rows = executor.weight_bytes, executor.example(half, 4)
    wanted = executor.run(half, rows)[0].clone()
    executor.load(instance(2, 1, 1.0))
    both = executor.weight_bytes
    assert both > narrow > 0
    executor.unload(1)
    assert executor.weight_bytes == both, "the wide instance can run all of them"
    assert torch.equal(executor.run(half, rows)[0], wanted)
    executor.unload(2)
    assert executor.weight_bytes == 0
    executor.load(instance(3, 1, 0.5))
    assert executor.weight_bytes == narrow
    assert torch.equal(executor.run(half, rows)[0], wanted)
    executor.unload(3)


@needs_cuda
def test_batches_begun_side_by_side_end_as_those_run_alone(executor: CudaExecutor) -> None:
    for number in range(2):
        executor.load(instance(number, 0, 0.5))
    half, store = key(0, 0.5), ActivationStore()
    batches = []
    for first in (0, 100):
        requests = tuple(Request(id=first + n, arrival_s=0.0) for n in range(5))
        batches.append(Batch(id=1, key=half, instance=0, blocks=(block_of(1, half, requests),), size=5))
        store.put([request.id for request in requests], (images(5),))
    run_batch(executor, store, batches[0])
    (alone,) = store.take(list(range(5)))
    store.put(list(range(5)), (images(5),))
    for batch in [BatchUnderWay(executor, store, batch) for batch in batches]:
        assert not batch.finish().failed
    assert torch.equal(store.take(list(range(5)))[0], alone)
    assert torch.equal(store.take(list(range(100, 105)))[0], alone)
    for number in range(2):
        executor.unload(number)


@needs_cuda
@pytest.mark.parametrize("first", [0, 1])
def test_a_batch_that_goes_on_gives_what_segment_by_segment_gives(executor: CudaExecutor, first: int) -> None:
    widths = (0.25, 1.0, 0.5, 0.75)
    for segment in range(4):
        executor.load(instance(segment, segment, 1.0))
    keys = legs(widths)
    requests, store = tuple(Request(id=n, arrival_s=0.0) for n in range(5)), ActivationStore()
    inputs = executor.example(keys[1], 5)[0] if first else images(5)

    def runs(key: Key, *, look: bool = False) -> BatchRun:
        instances = tuple(range(key.segment, key.last_segment + 1))
        block = block_of(1, key, requests)
        batch = Batch(id=1, key=key, instance=instances[0], blocks=(block,), size=5, also=instances[1:])
        under_way = BatchUnderWay(executor, store, batch)
        while look and not under_way.ready():
            pass
        return under_way.finish()

    whole = onward(keys[first], path(*widths[first + 1 :]))
    store.put(list(range(5)), (inputs.clone(),))
    wanted = [runs(key) for key in keys[first:]][-1].outputs
    for look in (False, True):
        store.put(list(range(5)), (inputs.clone(),))
        run = runs(whole, look=look)
        assert not run.failed
        assert run.outputs == wanted
        assert len(run.legs_s) == 4 - first
        assert sum(run.legs_s) <= run.busy_s
    for segment in range(4):
        executor.unload(segment)


@needs_cuda
@pytest.mark.parametrize("widths", [(1.0, 1.0, 1.0, 1.0), (0.25, 1.0, 0.5, 0.75)])
def test_segments_that_often_run_in_a_row_get_one_graph_that_gives_the_same(
    executor: CudaExecutor, widths: tuple[float, ...]
) -> None:
    for segment in range(4):
        executor.load(instance(segment, segment, 1.0))
    keys, rows = legs(widths), images(5)
    one_by_one: Tensors = (rows,)
    for leg in keys:
        one_by_one = executor.run(leg, one_by_one)
    wanted = one_by_one[0].clone()
    executor.prepare_plans()
    with_times = []
    for _ in range(OFTEN + 2):
        launched = executor.launch(keys, [(rows,)], (0, 1, 2, 3))
        found = launched.wait()[-1][0]
        with_times.append(bool(launched.legs_s))
        assert (found - wanted).norm() / wanted.norm() < 0.01
    assert not with_times[-1], "the last runs had one graph"
    assert with_times[0] == (len(set(widths)) > 1), "plans with one width have it from the start"
    executor.unload(3)
    executor.load(instance(3, 3, 1.0))
    found = executor.launch(keys, [(rows,)], (0, 1, 2, 3)).wait()[-1][0]
    assert (found - wanted).norm() / wanted.norm() < 0.01, "weights have moved"
    for segment in range(4):
        executor.unload(segment)


@needs_cuda
def test_each_batch_runs_on_the_instance_it_was_given(executor: CudaExecutor) -> None:
    narrow, wide = key(0, 0.25), key(0, 1.0)
    for number, width in enumerate((0.25, 1.0)):
        executor.load(instance(number, 0, width))
    on_the_wide_one = executor.launch((narrow,), [(images(1),)], (1,))
    on_the_narrow_one = executor.launch((narrow,), [(images(1),)], (0,))
    on_the_wide_one.wait()
    assert executor.launch((wide,), [(images(1),)], (1,)).wait()[0][0].shape[0] == 1, (
        "nothing narrow is in its way"
    )
    on_the_narrow_one.wait()
    for number in range(2):
        executor.unload(number)


@needs_cuda
def test_a_key_that_no_instance_can_run_is_refused(executor: CudaExecutor) -> None:
    executor.load(instance(1, 2, 0.5))
    with pytest.raises(SlimError, match="load one first"):
        executor.run(key(2, 0.75, 0.5), executor.example(key(2, 0.75, 0.5), 1))
    executor.unload(1)
