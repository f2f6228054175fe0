"""What the machines of serving keep must agree: for tests, after any event."""

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from slimsched.serving.domain.cluster import InstanceState
from slimsched.serving.domain.request import count_examples, ids_of
from slimsched.serving.gateway.admission import Admission, Fifo, WorkAhead
from slimsched.serving.gateway.gateway import Gateway, SentBlocks
from slimsched.serving.routers.autoscaler import Autoscaler
from slimsched.serving.scheduler.scheduler import GreedyScheduler, Instances, KeyQueue, LoadGate


def check(holds: bool, text: str, *values: object) -> None:
    """Raise an error with these values unless a condition holds that a machine itself must keep."""
    assert holds, f"inconsistent state: {text.format(*map(repr, values))}"


def check_gateway(one: Gateway) -> None:
    """Each example is in one place, and all counts agree."""
    seen, queued = one.seen, [number for fifo in one._queues.values() for number in waiting_in(fifo)]
    known = [*queued, *one._sent.ids()]
    check(len(set(known)) == len(known), "an example is in two places: {}", known)
    settled = one._sent.settled
    check(settled <= set(known), "settled examples {} are not at servers", settled)
    check(len(known) - len(settled) == one.in_system, "{} in the system: {}", one.in_system, known)
    check(len(queued) == seen.fifo, "{} counted as queued: {}", seen.fifo, queued)
    check(all(map(len, one._queues.values())) or not queued, "an empty queue is kept")
    outstanding, backlog_s = work_of(one._sent, len(one.cluster))
    check(outstanding == seen.outstanding.tolist(), "sent: {}, counted: {}", outstanding, seen.outstanding)
    check(np.allclose(backlog_s, seen.backlog_s), "work sent: {}, not {}", backlog_s, seen.backlog_s)
    up = [server for server in range(len(one.cluster)) if seen.alive[server]]
    check(up == seen.alive_ids and not seen.penalty_s[up].any(), "up: {}, listed: {}", up, seen.alive_ids)
    if one.admission is not None:
        check_admission(one.admission, known)


def work_of(sent: SentBlocks, servers: int) -> tuple[list[float], list[float]]:
    """Return how many examples each server has, and their work."""
    outstanding, backlog_s = [0.0] * servers, [0.0] * servers
    for block in sent._blocks.values():
        outstanding[block.server] += block.examples
        backlog_s[block.server] += block.examples * block.work_s
    return outstanding, backlog_s


def waiting_in(fifo: Fifo) -> list[int]:
    """List the ids of all examples, after a check that groups and runs agree on how many there are."""
    for place, group in fifo._groups.items():
        counts = [run.count for run in group.runs]
        real = [count_examples(run.requests) if run.requests else 0 for run in group.runs]
        check(counts == real and sum(counts) == group.count, "{}: runs {}, real {}", place, counts, real)
    total = sum(group.count for group in fifo._groups.values())
    check(total == fifo._length, "{} in groups, {} in all", total, fifo._length)
    runs = [run for group in fifo._groups.values() for run in group.runs]
    return [number for run in runs for number in ids_of(run.requests)]


def check_admission(admission: Admission, known: list[int]) -> None:
    """Exactly these examples count as work ahead, once there was a deadline."""
    counted = counted_in(admission._ahead)
    is_used = admission._is_used
    check(not is_used or counted <= set(known), "work of {} is ahead, but {} wait", counted, known)


def counted_in(ahead: WorkAhead) -> set[int]:
    """Return the ids of all that is counted, after a check that shares and sums agree."""
    examples: Counter[Any] = Counter()
    for rank, _, count in ahead._shares.values():
        examples[rank] += count
    sums = {rank: count for rank, (count, _) in ahead._sums.items()}
    check(sums == examples, "{} examples by rank, their shares are of {}", sums, examples)
    return {first + n for first, (_, _, count) in ahead._shares.items() for n in range(count)}


def check_scheduler(one: GreedyScheduler) -> None:
    """Each example is in one place, and instances match batches."""
    running = [number for batch in one._running.values() for number in (batch.instance, *batch.also)]
    busy = busy_in(one.instances)
    check(sorted(running) == busy, "instances {} run batches, {} are busy", running, busy)
    ran = [number for batch in one._running.values() for block in batch.blocks for number in block.ids]
    known = [*ran, *queued_in(one.queue)]
    check(len(set(known)) == len(known), "an example is in two places: {}", known)
    check(fit(one.load_gate, one.instances), "{} bytes are loaded", one.instances.memory_bytes)


def queued_in(queue: KeyQueue) -> list[int]:
    """List the ids of all waiting examples, after a check of the sizes by key."""
    sizes = {key: sum(block.examples for _, block in heap) for key, heap in queue._heaps.items()}
    check(sizes == queue._sizes, "sizes {}, in the heaps {}", queue._sizes, sizes)
    check(set(queue.in_order()) == set(sizes), "keys {} wait", sizes)
    return [number for heap in queue._heaps.values() for _, block in heap for number in block.ids]


def busy_in(instances: Instances) -> list[int]:
    """List the ids of busy instances, after a check of the lists and of the memory."""
    listed = [s for lists in instances._by_segment.values() for slots in lists for s in slots]
    slots = list(instances._slots.values())
    check({id(slot) for slot in listed} == {id(slot) for slot in slots}, "lists differ: {}", listed)
    held = sum(slot.instance.memory_bytes for slot in slots)
    loaded = sum(s.instance.memory_bytes for s in slots if s.state is not InstanceState.LOADING)
    known = instances.memory_bytes, instances.loaded_bytes
    check((held, loaded) == known, "memory {} of {}", loaded, held)
    return sorted(slot.instance.id for slot in slots if slot.state is InstanceState.BUSY)


def fit(gate: LoadGate, instances: Instances) -> bool:
    """Whether the instances are within the cap, where no sensor said that they take less."""
    is_measured = gate._sample is not None and gate._sample.measured
    return is_measured or instances.memory_bytes <= gate._options.vram_cap_bytes


def check_autoscaler(one: Autoscaler) -> None:
    """It is not crowded and idle at once, nor since before its last step."""
    since = [at_s for at_s in (one._crowded_s, one._idle_s) if at_s < inf]
    check(len(since) < 2, "crowded and idle at once, since {}", since)
    check(all(at_s >= one._stepped_s for at_s in since), "stepped at {}, {}", one._stepped_s, since)


CHECKS: dict[type, Callable[[Any], None]] = {
    Gateway: check_gateway,
    GreedyScheduler: check_scheduler,
    Autoscaler: check_autoscaler,
}
"""The check of each machine."""
