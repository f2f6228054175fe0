"""Gangs that really communicate, on a real Slurm: dally beside Slurm's own scheduling, and what we predicted.

    python benchmarks/jobs_traffic/run.py --runs 3 --out traffic.jsonl      # root, iproute2, Slurm, torch

Eight machines in two racks are network namespaces; cards and uplinks are limited by tc (`racks.py`). A gang
is one process per machine that sleeps for what it would compute and then all-reduces real bytes (gloo).
First gangs run alone, to see whether an iteration takes as long as the model says, and what a start and an
end cost. Then the same gangs come under each scheduler in turn. Results are added to `--out`, so runs may be
spread. A run in which gangs that only sleep took more than a tenth too long does not count: something else
had the processor.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev

from live import SLURM, Course, Site, gang_server, run
from prediction import Overhead, predict
from racks import Racks
from replayed import replay
from workload import COMPUTE_S, GRADIENT_BYTES, Gang, draw, sensitivity_of

from slimsched.jobs.domain import Job

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from throw_away_slurm import wait_until

GPUS = 4
LATE = 1.1
ALONE = {"one rack": "n1,n2", "two racks": "n4,n5", "two and two": "n3,n4,n5,n6"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--schedulers", default=f"{SLURM},dally", help="'slurm' is Slurm's own")
    parser.add_argument("--gangs", type=int, default=36)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--alone", action="store_true", help="only measure gangs alone")
    given = parser.parse_args()
    racks = Racks(gpus=GPUS)
    racks.up()
    try:
        overhead = measure_alone(racks)
        if given.alone:
            return
        gangs = draw(given.gangs, given.seed, sensitivity_of(racks))
        for _ in range(given.runs):
            for scheduler in given.schedulers.split(","):
                row = {"scheduler": scheduler, "gangs": given.gangs, "seed": given.seed}
                measured = run(racks, gangs, scheduler)
                told = [figures(one) for one in predict(racks, gangs, scheduler, overhead)]
                row |= {"measured": figures(measured), "lateness": lateness(gangs, measured)}
                row["run_s"] = [fmean(column) for column in zip(*replay(racks, gangs, measured), strict=True)]
                row["predicted"] = {name: fmean(one[name] for one in told) for name in told[0]}
                row["spread"] = {name: stdev(one[name] for one in told) for name in told[0]}
                print(json.dumps(row), flush=True)
                row |= {"overhead": overhead, "courses": measured}
                if given.out:
                    with given.out.open("a") as out:
                        out.write(json.dumps(row) + "\n")
    finally:
        racks.down()
    if given.out:
        show([json.loads(line) for line in given.out.read_text().splitlines()])


def figures(courses: Sequence[Course]) -> dict[str, float]:
    """Makespan, mean completion time and wait, and how many gangs crossed racks."""
    first_s = min(one.submitted_s for one in courses)
    return {
        "makespan_s": max(one.ended_s for one in courses) - first_s,
        "jct_mean_s": fmean(one.ended_s - one.submitted_s for one in courses),
        "wait_mean_s": fmean(one.started_s - one.submitted_s for one in courses),
        "crossing": sum(one.racks > 1 for one in courses),
    }


def lateness(gangs: Sequence[Gang], courses: Sequence[Course]) -> float:
    """How much longer gangs on one machine took than they should; they only sleep."""
    alone = [
        (course.ended_s - course.started_s) / (gang.steps * COMPUTE_S)
        for gang, course in zip(gangs, courses, strict=True)
        if gang.machines(GPUS) == 1
    ]
    return median(alone)


def measure_alone(racks: Racks) -> Overhead:
    """Run gangs alone: seconds per iteration beside the model's, and what a start and an end cost."""
    sensitivity = sensitivity_of(racks)
    overheads = []
    print("| model | where | iteration, measured (s) | modelled (s) |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="slim-gangs-") as name:
        site = Site(racks, Path(name), scheduler=SLURM)
        site.slurm.start()
        try:
            with gang_server(Path(name)):
                for model in GRADIENT_BYTES:
                    for where, nodes in ALONE.items():
                        gang = Gang(0.0, GPUS * len(nodes.split(",")), model, 10)
                        course, free_s = _alone(site, gang, nodes)
                        overheads.append((course.started_s - course.submitted_s, free_s - course.ended_s))
                        job = Job(id="", arrival_s=0.0, gpus=gang.gpus, service_s=1.0, model=model)
                        placement = tuple((machine, GPUS) for machine in nodes.split(","))
                        comm_s = sensitivity.comm_at(job, placement).total_s()
                        expected_s = sensitivity.model(job).compute_s + comm_s
                        took_s = (course.ended_s - course.started_s) / gang.steps
                        print(f"| {model} | {where} | {took_s:.3f} | {expected_s:.3f} |", flush=True)
        finally:
            site.slurm.stop()
    overhead = Overhead(*(fmean(column) for column in zip(*overheads, strict=True)))
    print(f"a start costs {overhead.before_s:.2f} s, an end {overhead.after_s:.2f} s", file=sys.stderr)
    return overhead


def _alone(site: Site, gang: Gang, nodes: str) -> tuple[Course, float]:
    """Run one gang on these machines; returns its course and when its GPUs were free again."""
    submitted_s = time.time()
    job = site.submit(gang, f"--nodelist={nodes}")
    wait_until(site.idle, "the gang is done", timeout_s=60, step_s=0.05)
    return site.courses({job: submitted_s})[0], time.time()


def show(rows: Sequence[dict]) -> None:
    """Print every scheduler's runs that count beside the prediction."""
    late = sum(row["lateness"] > LATE for row in rows)
    rows = [row for row in rows if row["lateness"] <= LATE]
    print(f"{len(rows)} runs; {late} others did not count, for want of processor time")
    print("| scheduler | | measured | mean | predicted ± spread | difference |\n|---|---|---|---|---|---|")
    for scheduler in dict.fromkeys(row["scheduler"] for row in rows):
        its = [row for row in rows if row["scheduler"] == scheduler]
        ran_s, modelled_s = (fmean(row["run_s"][i] for row in its) for i in (0, 1))
        off = f"{100 * (modelled_s / ran_s - 1):+.1f} %"
        each = ", ".join(f"{row['run_s'][0]:.1f}" for row in its)
        print(f"| {scheduler} | run_mean_s, told where | {each} | {ran_s:.1f} | {modelled_s:.1f} | {off} |")
        for what in its[0]["measured"]:
            runs = [row["measured"][what] for row in its]
            mean, told = fmean(runs), fmean(row["predicted"][what] for row in its)
            each = ", ".join(f"{one:.1f}" for one in runs)
            off = f"{100 * (told / mean - 1):+.1f} %" if mean else "–"
            spread = fmean(row["spread"][what] for row in its)
            print(f"| {scheduler} | {what} | {each} | {mean:.1f} | {told:.1f} ± {spread:.1f} | {off} |")


if __name__ == "__main__":
    main()
