"""How long one round of the Slurm controller takes with many jobs in the queue.

    python benchmarks/slurm_round.py --jobs 1000

Starts a throw-away Slurm (8 machines × 8 fake GPUs), submits held jobs, and times an observation and a dry
run of a round.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from slimsched.jobs.domain import fabric_named
from slimsched.jobs.setting import SchedulerSetting
from slimsched.jobs.slurm import controller
from slimsched.jobs.slurm.controller import DryRunClient, SlurmController, observe
from slimsched.jobs.slurm.wire import JobRequest
from slimsched.jobs.traces.models import TRAINING_MODELS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from throw_away_slurm import ThrowAwaySlurm


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1000)
    jobs: int = parser.parse_args().jobs
    cluster = ThrowAwaySlurm(Path(tempfile.mkdtemp(prefix="slim-slurm-")))
    cluster.start()
    try:
        client = cluster.client
        racks = controller.check(client).racks
        begin_s = time.perf_counter()
        for i in range(jobs):
            client.submit((), gpus=1 + i % 16, request=JobRequest(model="bert"), options=["--wrap=true"])
        submit_s = (time.perf_counter() - begin_s) / jobs
        dry = SlurmController(
            client=DryRunClient(client),
            setting=SchedulerSetting(
                engine="slurm",
                policy="dally",
                cluster="slurm",
                fabric=fabric_named("congested"),
                models=TRAINING_MODELS,
            ),
        )
        looks, rounds = [], []
        for _ in range(10):
            begin_s = time.perf_counter()
            seen = observe(client, racks=racks, partition=None, unix_s=time.time(), speed=1.0)
            looks.append(time.perf_counter() - begin_s)
            begin_s = time.perf_counter()
            dry.round(seen)
            rounds.append(time.perf_counter() - begin_s)
        held = seen.jobs
        first, later = rounds[0], sorted(rounds[1:])[len(rounds) // 2]
        row = {"jobs": len(held), "submit_s": submit_s, "look_s": sorted(looks)[5]}
        print(json.dumps({**row, "first_round_s": first, "later_round_s": later}))
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
