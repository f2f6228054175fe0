"""How close the executor comes to the bare model on a CUDA device.

    python benchmarks/executor_cuda.py [--batch 256] [--streams 6] [--json]

Offline replays the whole model as one CUDA graph, over an input that is already on the device and normalized,
so nothing is copied in or out. It runs once alone, and once as several graphs on as many streams. Executor
runs batches as a server does, through the activation store, from raw images to logits, with one batch under
way per stream: segment by segment, and with all segments of a plan launched at once. The last figure is the
time of a width switch.
"""

import argparse
import gc
import json
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from width_switch import switch_s

from slimsched.models.loading import load
from slimsched.models.network import Trained
from slimsched.models.slimresnet.elastic import SlimResNetModel
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.request import Batch, Key, Request, block_of, onward
from slimsched.serving.live.batches import ActivationStore, BatchUnderWay
from slimsched.serving.live.cuda import CudaExecutor, cuda_device
from slimsched.serving.live.executor import HostedModel
from slimsched.serving.scenario.files import shipped_model

MODEL = shipped_model()
LONG_S = 0.7


def keys_at(width: float) -> list[Key]:
    """Return the keys of the four segments at one width."""
    return MODEL.legs(MODEL.spec.path(str(width)))


def whole_model(model: SlimResNetModel, width: float, batch: int) -> Callable[[], None]:
    """Capture the four segments as one graph and return a function that replays it."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    raw = torch.randint(0, 256, (batch, 3, 32, 32), dtype=torch.uint8, device="cuda")
    images = model.prepare((raw,))
    names = [MODEL.spec.segments[key.segment][key.choice] for key in keys_at(width)]
    segments = [model.segment(at, name, name if at else None) for at, name in enumerate(names)]

    def forward() -> torch.Tensor:
        rows = images
        for segment in segments:
            rows = segment(rows)
        return rows[0]

    torch.cuda.synchronize()
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            forward()
        stream.synchronize()
        graph.capture_begin()
        kept = forward()
        graph.capture_end()

    def replay(kept: torch.Tensor = kept) -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay


def offline(model: SlimResNetModel, width: float, batch: int, streams: int = 1) -> float:
    """Return the images per second of the bare model."""
    graphs = [whole_model(model, width, batch) for _ in range(streams)]
    for _ in range(20):
        for replay in graphs:
            replay()
    torch.cuda.synchronize()
    rates = []
    for _ in range(3):
        began_s, count = perf_counter(), 0
        while perf_counter() - began_s < LONG_S / 3:
            for _ in range(20):
                for replay in graphs:
                    replay()
            count += 20 * streams
            torch.cuda.synchronize()
        rates.append(count * batch / (perf_counter() - began_s))
    return median(rates)


class Chain:
    """A batch that goes through all four segments again and again, one at a time or all at once."""

    def __init__(
        self, executor: CudaExecutor, width: float, batch: int, first: int, *, at_once: bool, instance: int
    ) -> None:
        self._executor, self._store = executor, ActivationStore()
        requests = tuple(Request(id=first + n, arrival_s=0.0) for n in range(batch))
        self._ids = [request.id for request in requests]
        self._raw = torch.randint(0, 256, (batch, 3, 32, 32), dtype=torch.uint8).pin_memory()
        keys = keys_at(width)
        if at_once:
            keys = [onward(keys[0], tuple(key.choice for key in keys[1:]))]
        self._batches = [
            Batch(
                id=0,
                key=key,
                instance=instance + key.segment,
                also=tuple(range(instance + key.segment + 1, instance + key.last_segment + 1)),
                blocks=(block_of(0, key, requests),),
                size=batch,
            )
            for key in keys
        ]
        self._segment = 0
        self._under_way: BatchUnderWay | None = None

    def ready(self) -> bool:
        """Return whether the segment under way is done."""
        return self._under_way is None or self._under_way.ready()

    def step(self) -> None:
        """Wait for the segment under way and start the next."""
        self.finish()
        if self._segment == 0:
            self._store.put(self._ids, (self._raw,))
        self._under_way = BatchUnderWay(self._executor, self._store, self._batches[self._segment])
        self._segment = (self._segment + 1) % len(self._batches)

    def finish(self) -> None:
        """Wait for the segment under way."""
        if self._under_way is not None:
            self._under_way.finish()


def executor_alone(executor: CudaExecutor, width: float, batch: int, streams: int, *, at_once: bool) -> float:
    """Return the images per second through executor and store, with `streams` chains under way."""
    slots = [
        Instance(id=4 * number + key.segment, segment=key.segment, choice=key.choice, memory_bytes=0)
        for number in range(streams)
        for key in keys_at(width)
    ]
    for slot in slots:
        executor.load(slot)
    if at_once:
        executor.prepare_plans()
    chains = [
        Chain(executor, width, batch, 1000 * number, at_once=at_once, instance=4 * number)
        for number in range(streams)
    ]
    rates = []
    for _ in range(4):
        began_s, count = perf_counter(), 0
        while perf_counter() - began_s < LONG_S / 3:
            for chain in chains:
                if chain.ready():
                    chain.step()
                    count += 1
        rates.append(count * batch / (1 if at_once else 4) / (perf_counter() - began_s))
    for chain in chains:
        chain.finish()
    for slot in slots:
        executor.unload(slot.id)
    return median(rates[1:])


def measure(batch: int, streams: int, model: Trained) -> dict[str, object]:
    """Measure all figures of one device."""
    elastic, device = SlimResNetModel(model), cuda_device()
    elastic.place(device)
    hosted = HostedModel(MODEL, SlimResNetModel(model), device)  # the executor moves its weights about
    executor = CudaExecutor([hosted], batch_limit=batch, lanes=streams)
    rows = []
    for width in (0.25, 1.0):
        bare = offline(elastic, width, batch)
        several = offline(elastic, width, batch, streams)
        alone, whole = [
            executor_alone(executor, width, batch, streams, at_once=at_once) for at_once in (False, True)
        ]
        row = {"width": width, "offline": bare, "offline, streams": several, "executor": alone}
        rows.append({**row, "executor, at once": whole})
    return {
        "device": torch.cuda.get_device_name(),
        "batch": batch,
        "rows": rows,
        "switch_s": switch_s(executor, MODEL, batch, warm_up=10, rounds=50),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--streams", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    gc.freeze()
    figures = measure(given.batch, given.streams, load())
    if given.json:
        print(json.dumps(figures, indent=1))
        return
    print(f"images per second at batch {given.batch}, {figures['device']}, bf16")
    for row in figures["rows"]:  # type: ignore[attr-defined]
        one, several, alone, whole = list(row.values())[1:]
        print(
            f"width {row['width']:g}: offline {one:,.0f}, on {given.streams} streams {several:,.0f}; "
            f"executor {alone:,.0f} ({100 * alone / one:.0f} % and {100 * alone / several:.0f} %), "
            f"all segments at once {whole:,.0f} ({100 * whole / one:.0f} % and {100 * whole / several:.0f} %)"
        )
    print(f"width switch: {1e6 * figures['switch_s']:+.0f} µs")  # type: ignore[operator]


if __name__ == "__main__":
    main()
