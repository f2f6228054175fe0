"""Blox's scheduler in simulation (msr-fiddle/blox): one machine with all GPUs, rounds of a minute.

Its simulator is two programs that talk over gRPC at fixed ports. The scheduler, its loop and its bookkeeping
run as they are, in the Python that `--python` names (pandas 1.5). The other program and the wire are replaced
by one object that hands out the machine and the jobs. Their loop counts in rounds, so jobs come in whole
rounds and last for whole rounds here.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from slimsched.jobs.domain import Job

SCHEDULES = {"fifo": "Fifo", "srtf": "Srtf"}
ROUND_S = 60

LAUNCH = """\
import argparse, json, os, sys, types
sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "blox")]
for name in ("grpc", "nm_pb2", "nm_pb2_grpc", "rm_pb2", "simulator_pb2", "simulator_pb2_grpc"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["grpc"].Server = object

given = json.load(open(sys.argv[1]))


class RMServer:
    def __init__(self, simulator_rpc_port):
        self.jobs = given["jobs"]
        names = "\\n".join(["gpu"] * given["gpus"])
        self.nodes = [{"numGPUs": given["gpus"], "gpuUUIDs": names, "ipaddr": "pool"}]

    def get_new_sim_config(self):
        last = len(given["jobs"]) - 1
        return {"scheduler": given["schedule"], "load": 1, "start_id_track": 0, "stop_id_track": last}

    def get_new_nodes(self):
        nodes, self.nodes = self.nodes, []
        return nodes

    def get_jobs_sim(self, now_s):
        came = [job for job in self.jobs if job["submit_time"] <= now_s]
        self.jobs = self.jobs[len(came):]
        return came


wire = types.ModuleType("deployment.grpc_server_rm")
wire.RMServer = RMServer
wire.start_server = lambda rmserver, rm_server_rpc_port: types.SimpleNamespace(stop=lambda grace: None)
import deployment
sys.modules["deployment.grpc_server_rm"] = deployment.grpc_server_rm = wire
import las_scheduler
las_scheduler.schedulers.Las = getattr(las_scheduler.schedulers, given["schedule"])
sys.argv = ["las_scheduler.py", "--simulate", "--round-duration", str(given["round_s"]), "--load", "1",
            "--exp-prefix", os.path.join(given["folder"], "blox")]
las_scheduler.main(las_scheduler.parse_args(argparse.ArgumentParser()))
"""


def in_rounds(jobs: Sequence[Job], round_s: int = ROUND_S) -> list[Job]:
    """The same jobs in whole rounds."""
    return [
        msgspec.structs.replace(
            job,
            arrival_s=float(job.arrival_s // round_s * round_s),
            service_s=float(max(1, -(-job.service_s // round_s)) * round_s),
        )
        for job in jobs
    ]


def run(
    checkout: Path, schedule: str, jobs: Sequence[Job], gpus: int, folder: Path, python: str
) -> dict[str, float]:
    """Run Blox's scheduler in simulation; return completion times."""
    rows = [
        {
            "job_id": number,
            "num_GPUs": job.gpus,
            "submit_time": job.arrival_s,
            "job_arrival_time": job.arrival_s,
            "job_iteration_time": 1.0,
            "job_total_iteration": job.service_s,
            "job_executed_iteration": 0.0,
            "simulation": True,
        }
        for number, job in enumerate(jobs)
    ]
    asked = {"jobs": rows, "gpus": gpus, "schedule": schedule, "round_s": ROUND_S, "folder": str(folder)}
    (folder / "asked.json").write_text(json.dumps(asked))
    done = subprocess.run(
        [python, "-c", LAUNCH, str(folder / "asked.json")],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    written = list(folder.glob("blox*_job_stats.json"))
    if done.returncode or not written:
        raise SystemExit(f"{checkout}: {(done.stderr.strip() or 'no result').splitlines()[-1]}")
    times: dict[str, list[float]] = json.loads(written[0].read_text())
    return {jobs[int(number)].id: ended_s - came_s for number, (came_s, ended_s) in times.items()}
