"""Jobs, clusters and simulations the job tests share."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st

from slimsched.core.log import Entry
from slimsched.jobs.domain import FABRICS, Job, Topology
from slimsched.jobs.scheduler.messages import LiveCommand, LiveEvent
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.scheduler.policy import Policy
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.setting import POLICIES
from slimsched.jobs.simulated.cluster import Checkpoint, Failure, SimulatedJobs
from slimsched.jobs.telemetry import JobEntry
from slimsched.jobs.traces.models import MEASURED, TRAINING_MODELS

DATA = os.environ.get("SLIM_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="set SLIM_DATA to the data folder to run this test")
OWN = f"{Path(__file__).parent / 'own_policy.py'}:LargestFirst:patience_s=500"
"""A policy from a file."""
EXAMPLES = {"manual": "manual:machine_s=1000:rack_s=5000"}
"""Specs of policies that cannot do without options."""
SPECS = [*(EXAMPLES.get(name, name) for name in POLICIES.names()), OWN]
"""One spec for every policy there is."""
SMALL = Topology.grid(racks=2, machines_per_rack=2, gpus_per_machine=4)


def data_folder() -> Path:
    """The data folder; only in tests that need it."""
    assert DATA is not None
    return Path(DATA)


def job(
    name: str, gpus: int = 1, *, at_s: float = 0.0, service_s: float = 100.0, model: str = "lm", **more
) -> Job:
    """A job that names only what matters."""
    return Job(id=name, arrival_s=at_s, gpus=gpus, service_s=service_s, model=model, **more)


def scheduler(policy: Policy, topology: Topology = SMALL, network: str = "congested", **more) -> JobScheduler:
    """A scheduler on a small cluster."""
    sensitivity = Sensitivity(topology=topology, fabric=FABRICS[network], models=TRAINING_MODELS)
    return JobScheduler(topology=topology, policy=policy, sensitivity=sensitivity, **more)


def simulation(
    policy: Policy,
    jobs: Sequence[Job],
    topology: Topology = SMALL,
    *,
    network: str = "congested",
    failures: Sequence[Failure] = (),
    checkpoint: Checkpoint | None = None,
    **more,
) -> SimulatedJobs:
    """A simulation on a small cluster."""
    sensitivity = Sensitivity(topology=topology, fabric=FABRICS[network], models=TRAINING_MODELS)
    machine = JobScheduler(topology=topology, policy=policy, sensitivity=sensitivity, **more)
    return SimulatedJobs(
        scheduler=machine, sensitivity=sensitivity, jobs=jobs, failures=failures, checkpoint=checkpoint
    )


def news(entries: Iterable[JobEntry]) -> Iterator[tuple[float, msgspec.Struct]]:
    """Each event, and after it each of its commands, with the time."""
    for now_s, event, commands in entries:
        yield now_s, event
        for command in commands:
            yield now_s, command


def encode(entries: Iterable[JobEntry]) -> bytes:
    """Entries as bytes, to compare runs by."""
    return msgspec.json.encode(list(entries))


def decode_entries(entries: Iterable[Entry]) -> Iterator[JobEntry]:
    """Read the entries of a log on disk."""
    events = msgspec.json.Decoder(LiveEvent)
    commands = msgspec.json.Decoder(list[LiveCommand])
    for entry in entries:
        yield entry.now_s, events.decode(entry.event), commands.decode(entry.commands)


@st.composite
def job_lists(draw: st.DrawFn, *, largest: int = 16, longest_s: float = 20000.0) -> list[Job]:
    """A few dozen jobs that fit the small cluster."""
    count = draw(st.integers(1, 30))
    return [
        Job(
            id=str(i),
            arrival_s=draw(st.floats(0.0, 10000.0)),
            gpus=draw(st.integers(1, largest)),
            service_s=draw(st.floats(1.0, longest_s)),
            model=draw(st.sampled_from(MEASURED)),
        )
        for i in range(count)
    ]
