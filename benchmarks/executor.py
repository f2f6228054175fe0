"""How close a server comes to the bare model on the same core.

    python benchmarks/executor.py [--batch 32] [--core 1]

Offline runs the four packed segments in a loop, one batch after another. Executor runs the same batches as a
server does, segment by segment through the activation store. Server sends real requests, all at once and at a
fixed width, through a live cluster of one server process. All three run on one core in one run, so compare
their ratios. The time of a width switch is that of the first batch after a change of width, minus that of
the second.
"""

import argparse
import asyncio
import os
from statistics import median
from time import perf_counter

import numpy as np
import torch
from width_switch import switch_s

from slimsched.models.loading import load
from slimsched.models.network import Trained
from slimsched.models.slimresnet.elastic import SlimResNetModel, cpu_precision, pack
from slimsched.serving.domain.cluster import Cluster, Host, Instance, Link
from slimsched.serving.domain.profile import record_of
from slimsched.serving.domain.request import Batch, Request, Terms, block_of
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.messages import GatewayOptions
from slimsched.serving.live.batches import ActivationStore, run_batch
from slimsched.serving.live.cluster import LiveCluster
from slimsched.serving.live.engine import LocalEngine
from slimsched.serving.live.executor import CpuExecutor, HostedModel
from slimsched.serving.live.wire import ServerSpec, run
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import CONFIGS, load_profile, shipped_model
from slimsched.serving.scheduler.scheduler import SchedulerOptions

MODEL = shipped_model()
ROUNDS = 12
SERVED_ROUNDS = 60  # long enough to neglect the start and the end


def offline(model: Trained, width: float, batch: int) -> float:
    """Return the images per second of the bare model."""
    precision = cpu_precision()
    folded = [model.net.instance(s, width=width, previous=width if s else None) for s in range(4)]
    segments = [pack(one, precision) for one in folded]
    images = torch.rand((batch, 3, 32, 32)).to(precision).contiguous(memory_format=torch.channels_last)
    times_s = []
    with torch.inference_mode():
        for _ in range(ROUNDS):
            began_s = perf_counter()
            rows = images
            for segment in segments:
                rows = segment(rows)
            times_s.append(perf_counter() - began_s)
    return batch / median(times_s[2:])


def cpu_executor(model: Trained) -> CpuExecutor:
    """Return an executor of these weights."""
    return CpuExecutor([HostedModel(MODEL, SlimResNetModel(model), torch.device("cpu"))])


def executor_alone(model: Trained, width: float, batch: int) -> float:
    """Return the images per second through executor and store, from raw images to logits."""
    executor, store = cpu_executor(model), ActivationStore()
    keys = MODEL.legs(MODEL.spec.path(str(width)))
    for key in keys:
        executor.load(Instance(id=key.segment, segment=key.segment, choice=key.choice, memory_bytes=0))
    requests = tuple(Request(id=number, arrival_s=0.0) for number in range(batch))
    ids = [request.id for request in requests]
    raw = torch.randint(0, 256, (batch, 3, 32, 32), dtype=torch.uint8)
    times_s = []
    for _ in range(ROUNDS):
        began_s = perf_counter()
        store.put(ids, (raw,))
        for key in keys:
            run_batch(
                executor,
                store,
                Batch(id=0, key=key, instance=key.segment, blocks=(block_of(0, key, requests),), size=batch),
            )
        times_s.append(perf_counter() - began_s)
    return batch / median(times_s[2:])


async def server(width: float, batch: int, core: int) -> float:
    """Return the images per second through gateway, server process and executor."""
    link = Link(bandwidth_bytes_per_s=2e9, latency_s=0.0002)
    profile = load_profile("cpu-8-core", MODEL, CONFIGS)
    cluster = Cluster(
        names=["only"],
        profiles=[profile],
        models=[MODEL],
        links=[link],
        gateway_link=link,
        batch_limit=batch,
    )
    spec = ServerSpec(
        index=0,
        name="only",
        host=Host(cores=(core,)),
        scheduler=SchedulerOptions(batch_limit=batch, utilization_block=2.0, scale_trigger=10**9),
        models=[MODEL.name],
        profiles=[record_of(profile, MODEL)],
        telemetry_period_s=0.5,
    )
    gateway = Gateway(cluster, make_router("jsq", cluster, 0), GatewayOptions(step_s=0.0))
    live = LiveCluster(gateway, LocalEngine([spec]))
    await live.start()
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (batch, 3, 32, 32), dtype=np.uint8)
    inputs = [image.tobytes() for image in images]
    terms = Terms(plan=MODEL.tree.index[MODEL.spec.path(str(width))])
    await asyncio.gather(*[live.submit([one], terms) for one in inputs])
    began_s, waiters = perf_counter(), []
    for _ in range(SERVED_ROUNDS):
        waiters += [live.submit([one], terms) for one in inputs]
    await asyncio.gather(*waiters)
    rate = SERVED_ROUNDS * batch / (perf_counter() - began_s)
    await live.stop()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--core", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    everywhere = os.sched_getaffinity(0)
    model = load()
    print(f"images per second at batch {given.batch}, one core")
    print(f"{'width':>6}{'offline':>10}{'executor':>18}{'server':>18}")
    for width in (0.25, 1.0):
        os.sched_setaffinity(0, {given.core})
        bare, alone = offline(model, width, given.batch), executor_alone(model, width, given.batch)
        os.sched_setaffinity(0, everywhere - {given.core} or everywhere)
        served = run(server(width, given.batch, given.core))
        shares = f"{alone:10.1f} ({100 * alone / bare:3.0f} %){served:10.1f} ({100 * served / bare:3.0f} %)"
        print(f"{width:6g}{bare:10.1f}{shares}")
        os.sched_setaffinity(0, everywhere)
    extra_s = switch_s(cpu_executor(model), MODEL, given.batch, warm_up=3, rounds=20)
    print(f"width switch: {1e6 * extra_s:+.0f} µs")


if __name__ == "__main__":
    main()
