"""Jobs that may run on fewer or more GPUs."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benches import benchmark
from jobs.workloads import SMALL, data_folder, job, needs_data, news
from slimsched.core.config import ConfigError
from slimsched.jobs.domain import FABRICS, Topology, TrainingModel, gpus_in
from slimsched.jobs.policies.elastic import Options, cheapest_sizes
from slimsched.jobs.scheduler.messages import StartJob
from slimsched.jobs.scheduler.network import Sensitivity
from slimsched.jobs.scheduler.scheduler import JobScheduler
from slimsched.jobs.setting import POLICIES, LiveScheduler, SchedulerSetting
from slimsched.jobs.simulated.cluster import Checkpoint, SimulatedJobs
from slimsched.jobs.simulated.comparison import JobSetting, simulate

ELASTIC = TrainingModel(
    name="elastic", compute_s=1.0, exposed_bytes=0.0, source="", scaling=((1, 1.0), (2, 2.0), (4, 3.0))
)
FREE = Checkpoint(save_s=0.0, restore_s=0.0)
RESIZING = [name for name in ("sia", "elastic") if POLICIES.make(name).resizes]


def run(policy: str, jobs, topology: Topology = SMALL):
    sensitivity = Sensitivity(topology=topology, fabric=FABRICS["fast"], models={"elastic": ELASTIC})
    scheduler = JobScheduler(topology=topology, policy=POLICIES.make(policy), sensitivity=sensitivity)
    simulation = SimulatedJobs(scheduler=scheduler, sensitivity=sensitivity, jobs=jobs, checkpoint=FREE)
    return simulation.run()


def sizes_of(log, name: str) -> list[int]:
    return [
        gpus_in(command.placement)
        for _, command in news(log)
        if isinstance(command, StartJob) and command.job_id == name
    ]


@pytest.mark.parametrize("policy", RESIZING)
def test_a_job_alone_grows_to_its_largest_size_and_is_done_sooner(policy: str) -> None:
    log = run(policy, [job("a", 1, service_s=6000.0, model="elastic")])
    assert sizes_of(log, "a")[0] == 1
    assert sizes_of(log, "a")[-1] == 4
    assert log[-1][0] < 6000.0 / 2


@pytest.mark.parametrize("policy", RESIZING)
def test_gpus_are_shared_out_when_more_jobs_come(policy: str) -> None:
    pool = Topology.grid(racks=1, machines_per_rack=1, gpus_per_machine=4)
    jobs = [
        job("a", 4, service_s=20000.0, model="elastic"),
        *(job(f"b{i}", 1, at_s=5000.0, service_s=4000.0, model="elastic") for i in range(3)),
    ]
    log = run(policy, jobs, pool)
    assert max(sizes_of(log, "a")) == 4
    assert all(sizes_of(log, f"b{i}") for i in range(3))
    shrunk = [gpus for gpus in sizes_of(log, "a")[1:] if gpus < 4]
    assert shrunk


@pytest.mark.parametrize("policy", RESIZING)
def test_a_model_nobody_has_measured_keeps_what_its_job_asks_for(policy: str) -> None:
    log = run(
        policy, [job("a", 3, service_s=1000.0, model="lm"), job("b", 5, service_s=500.0, model="elastic")]
    )
    assert sizes_of(log, "a") == [3]
    assert sizes_of(log, "b") == [5]


def test_pace_between_measured_sizes_is_interpolated() -> None:
    assert ELASTIC.pace(3) == pytest.approx(2.5)
    assert dict(ELASTIC.sizes(2)) == {1: 0.5, 2: 1.0, 4: 1.5}


@given(
    costs=st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=4),
    gpus=st.integers(0, 9),
)
def test_the_knapsack_finds_what_trying_everything_finds(costs, gpus) -> None:
    jobs = [Options((0, 1, 4), tuple(map(float, row))) for row in costs]
    sizes = cheapest_sizes(jobs, gpus)
    assert sum(sizes) <= gpus

    def cost(choice) -> float:
        return sum(dict(zip(*one, strict=True))[size] for one, size in zip(jobs, choice, strict=True))

    possible = [choice for choice in product((0, 1, 4), repeat=len(jobs)) if sum(choice) <= gpus]
    assert cost(sizes) == min(map(cost, possible))


def test_slurm_jobs_cannot_be_resized() -> None:
    with pytest.raises(ConfigError, match="simulations only"):
        LiveScheduler(
            SchedulerSetting(
                engine="slurm", policy="elastic", cluster="slurm", fabric=FABRICS["fast"], models={}
            )
        )


@needs_data
def test_on_a_workload_of_sia_elastic_jobs_are_done_sooner_than_rigid_ones() -> None:
    jobs, models = benchmark("sia_workload").read_sia_workload(data_folder(), "saturn/workload-6")
    machines = Topology.grid(racks=4, machines_per_rack=4, gpus_per_machine=4).machines
    setting = JobSetting(machines=machines, cluster="T4s", known_models=models)
    rigid, elastic = (simulate(policy, jobs, setting, 0)[0] for policy in ("dally", "elastic"))
    assert elastic.jct_mean_s < 0.95 * rigid.jct_mean_s
    assert elastic.makespan_s < rigid.makespan_s
