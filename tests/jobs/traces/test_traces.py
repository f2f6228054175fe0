"""Trace readers, the generator and windows."""

import numpy as np
import pytest

from benches import benchmark
from jobs.workloads import data_folder, needs_data
from slimsched.core.config import DataError, SlimError
from slimsched.jobs.traces.clusters import read_cluster
from slimsched.jobs.traces.jobs import (
    DEMANDS,
    GAPS_S,
    SERVICE_S,
    generate_jobs,
    locate_trace,
    read_job_trace,
)
from slimsched.jobs.traces.models import MEASURED, TRAINING_MODELS, assign_models, rearrange, window

TRACES = {
    "helios": "job_id,arrival_s,service_sec,gpu_count\na,10.0,60.0,4\nb,12.0,30.0,1\nc,11.0,30.0,0\n",
    "philly": "timestamp,duration,num_gpus,gpu_time,cluster\n100,60,4,240,vc1\n102,30,1,30,vc2\n",
    "pai": (
        "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n"
        "a,worker,4,Terminated,10,70,600,30,100,V100\nb,ps,1,Terminated,12,42,600,30,50,T4\n"
        "c,worker,1,Running,12,,600,30,100,T4\n"
    ),
    "tiresias": (
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
        "a,4,10,606,vgg19,60,30\nb,1,12,133,vgg11,30,23\n"
    ),
    "sacct": (
        "JobID|User|Submit|Start|End|AllocTRES|TimelimitRaw\n"
        "7|ann|2024-01-01T00:00:10|2024-01-01T00:01:00|2024-01-01T00:02:00|cpu=8,gres/gpu=4,mem=1G|90\n"
        "7.batch|ann|2024-01-01T00:00:10|2024-01-01T00:01:00|2024-01-01T00:02:00|gres/gpu=4|\n"
        "8|bob|2024-01-01T00:00:12|2024-01-01T00:01:00|2024-01-01T00:01:30|cpu=1,gres/gpu=1|UNLIMITED\n"
        "9|bob|2024-01-01T00:00:12|2024-01-01T00:01:00|2024-01-01T00:01:30|cpu=1|5\n"
    ),
}


@pytest.mark.parametrize("kind", TRACES)
def test_every_kind_of_trace_is_told_by_its_header(kind, tmp_path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACES[kind])
    first, second = read_job_trace(str(path))
    assert (first.arrival_s, first.gpus, first.service_s) == (0.0, 4, 60.0)
    assert (second.arrival_s, second.gpus, second.service_s) == (2.0, 1, 30.0)
    if kind == "sacct":
        assert (first.tenant, first.limit_s, second.limit_s) == ("ann", 5400.0, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "give one of these formats, with these columns at least: Helios"),
        ("job_id,arrival_s,service_sec,gpu_count\na,x,60,1\n", "line 2"),
        (
            "job_id,arrival_s,service_sec,gpu_count\na,1,-60,1\n",
            "service_s is -60; give a number of at least 0",
        ),
        ("job_id,arrival_s,service_sec,gpu_count\na,1,60,1\na,2,60,1\n", "twice"),
        ("job_id,arrival_s,service_sec,gpu_count\na,1,60,0\n", "no job with GPUs"),
    ],
)
def test_a_malformed_trace_is_refused_in_one_line(text, says, tmp_path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=says) as caught:
        read_job_trace(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_or_broken_file_is_refused_in_one_line(tmp_path) -> None:
    (tmp_path / "broken.csv.gz").write_bytes(b"not gzip")
    for source in ("nowhere.csv", str(tmp_path / "broken.csv.gz"), str(tmp_path / "broken.csv.gz#x")):
        with pytest.raises(DataError):
            read_job_trace(source)
    with pytest.raises(DataError, match="SLIM_DATA"):
        locate_trace("helios", None)


def test_generated_jobs_look_like_helios() -> None:
    jobs = generate_jobs(20000, np.random.default_rng(0))
    gpus = np.array([job.gpus for job in jobs])
    service_s = np.array([job.service_s for job in jobs])
    assert np.mean(gpus == 1) == pytest.approx(0.518, abs=0.02)
    assert np.mean(gpus == 8) == pytest.approx(0.247, abs=0.02)
    assert np.median(service_s) == pytest.approx(204, rel=0.1)
    assert service_s.mean() == pytest.approx(9088, rel=0.1)
    assert jobs[-1].arrival_s / len(jobs) == pytest.approx(134, rel=0.2)
    assert max(job.gpus for job in generate_jobs(500, np.random.default_rng(0), largest=8)) == 8


def test_windows_models_and_arrivals_depend_on_the_seed_alone() -> None:
    jobs = generate_jobs(200, np.random.default_rng(0))

    def prepared(seed):
        rng = np.random.default_rng(seed)
        return rearrange(assign_models(window(jobs, 50, rng), rng), "poisson", rng=rng, gpus=512, load=0.5)

    assert prepared(1) == prepared(1)
    assert prepared(1) != prepared(2)
    assert {job.model for job in prepared(1)} <= set(MEASURED)
    batch = rearrange(jobs, "batch", rng=np.random.default_rng(0), gpus=512, load=1.0)
    assert {job.arrival_s for job in batch} == {0.0}


def test_poisson_arrivals_offer_the_load_asked_for() -> None:
    jobs = generate_jobs(5000, np.random.default_rng(0))
    moved = rearrange(jobs, "poisson", rng=np.random.default_rng(1), gpus=512, load=0.8)
    offered = sum(job.gpus * job.service_s for job in jobs) / (512 * moved[-1].arrival_s)
    assert offered == pytest.approx(0.8, rel=0.05)
    with pytest.raises(SlimError, match="load"):
        rearrange(jobs, "poisson", rng=np.random.default_rng(1), gpus=512, load=0.0)


def test_cluster_files_come_as_grid_list_or_csv(tmp_path) -> None:
    (tmp_path / "grid.toml").write_text("racks = 2\nmachines_per_rack = 3\ngpus_per_machine = 4\n")
    (tmp_path / "list.toml").write_text('[[machine]]\nname = "a"\nrack = "r"\ngpus = 2\n')
    (tmp_path / "list.csv").write_text("machine,rack,gpus\na,r,2\nb,r,4\n")
    assert read_cluster(tmp_path / "grid.toml").gpus == 24
    assert read_cluster(tmp_path / "list.toml").gpus == 2
    assert read_cluster(tmp_path / "list.csv").largest_machine == 4


@pytest.mark.parametrize("text", ["racks = 2\n", "racks = [\n", "rack = 2\n", "[[machine]]\nname = 'a'\n"])
def test_a_wrong_cluster_file_is_refused_in_one_line(text, tmp_path) -> None:
    (tmp_path / "wrong.toml").write_text(text)
    with pytest.raises(SlimError) as caught:
        read_cluster(tmp_path / "wrong.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.data
@needs_data
def test_the_real_traces_and_racks_are_read() -> None:
    helios = read_job_trace(locate_trace("helios", data_folder()))
    assert len(helios) == 125_303
    lingjun = read_cluster(data_folder() / "traces" / "alibaba_lingjun2023_topo.csv.gz")
    assert (len(lingjun.machines), len(lingjun.racks)) == (847, 48)


@pytest.mark.data
@needs_data
def test_the_generator_holds_what_helios_gives() -> None:
    demands, services, gaps_s = benchmark("measured_models").fit_jobs(
        read_job_trace(locate_trace("helios", data_folder()))
    )
    assert {gpus: demands[gpus] for gpus in DEMANDS} == pytest.approx(DEMANDS, abs=1e-5)
    for upper, quantiles in SERVICE_S.items():
        assert services[upper] == pytest.approx(quantiles, rel=0.01)
    assert gaps_s[:-1] == pytest.approx(GAPS_S[:-1], rel=0.01)


@pytest.mark.data
@needs_data
def test_the_committed_models_are_those_the_measurements_give() -> None:
    derived = {model.name: model for model in benchmark("measured_models").derive_models(data_folder())}
    assert derived.keys() == TRAINING_MODELS.keys()
    for name, model in TRAINING_MODELS.items():
        assert model.compute_s == pytest.approx(derived[name].compute_s, rel=1e-3)
        assert model.exposed_bytes == pytest.approx(derived[name].exposed_bytes, rel=1e-3)
        assert dict(model.scaling) == pytest.approx(dict(derived[name].scaling), rel=1e-3)
