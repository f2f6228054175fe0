"""Where dally gains, and how much: a sweep over network, arrivals, share of gangs and models.

    python benchmarks/gains_map.py run gains.jsonl --data ~/data [--jobs 1000] [--seeds 5]
    python benchmarks/gains_map.py draw gains.jsonl benchmarks/gains.png

`run` appends one line for each cell, seed and policy, and skips those that are there: stop it and go on as
you like. Cells: three networks of 512 GPUs and the measured racks of Alibaba Lingjun; jobs that arrive at
once or as a Poisson process at an offered load; the share of jobs with more than one GPU as in Helios, half
of it or twice as much; all measured models or only those that suffer from the network.
"""

import argparse
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from slimsched.jobs.domain import Job, Machine, Topology
from slimsched.jobs.simulated.comparison import JobSetting, simulate
from slimsched.jobs.traces.clusters import read_cluster
from slimsched.jobs.traces.jobs import locate_trace, read_job_trace
from slimsched.jobs.traces.models import MEASURED, assign_models, rearrange

RIVALS = ("fit-first", "lwf", "gandiva", "tiresias", "fully-consolidated", "no-wait")
POLICIES = ("dally", *RIVALS)
NETWORKS = ("fast", "oversubscribed", "congested", "lingjun")
ARRIVALS = ("poisson 0.7", "poisson 1.0", "poisson 1.5", "batch")
GANGS = (0.25, 0.5, 0.9)
"""Share of jobs with more than one GPU; Helios has 0.48."""
MODELS = {"all": MEASURED, "sensitive": ("lm", "transformer", "resnet18", "bert")}
FIGURES = {
    "makespan_s": "makespan",
    "jct_mean_s": "mean JCT",
    "comm_overhead": "communication",
    "excess_comm": "avoidable comm.",
}
CLAIMS = {"makespan_s": 0.69, "jct_mean_s": 0.83, "comm_overhead": 0.98, "excess_comm": 0.98}
"""What the abstract of arXiv 2401.16492 says, as a share of the rival's figure; it does not say whether
communication is all of it or the avoidable part."""
LINGJUN_HOSTS = 64


MAIN = (0.5, "all")
"""Share of gangs and models of the cells that are swept with all seeds first."""


class Cell(NamedTuple):
    """One condition."""

    network: str
    arrivals: str
    gangs: float
    models: str


def cells() -> list[Cell]:
    return [Cell(*one) for one in product(NETWORKS, ARRIVALS, GANGS, MODELS)]


def is_main(cell: Cell) -> bool:
    return cell[2:] == MAIN and cell.network != "lingjun"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "draw"))
    parser.add_argument("lines", type=Path)
    parser.add_argument("picture", type=Path, nargs="?")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--main", action="store_true", help="only all models, half of the jobs gangs, grids")
    given = parser.parse_args()
    if given.what == "run":
        run(given.lines, given.data, given.jobs, given.seeds, main_only=given.main)
    else:
        from gains_picture import draw

        draw(given.lines, given.picture)


def run(lines: Path, data: Path, count: int, seeds: int, *, main_only: bool) -> None:
    """Simulate what is not there yet, seed by seed."""
    trace = read_job_trace(locate_trace("helios", data))
    racks = {"lingjun": _lingjun(read_cluster(data / "traces" / "alibaba_lingjun2023_topo.csv.gz"))}
    grid = Topology.grid(racks=8, machines_per_rack=8, gpus_per_machine=8).machines
    done = {tuple(row["key"]) for row in read(lines)} if lines.is_file() else set()
    with lines.open("a") as out:
        chosen = [
            cell for cell in cells() if not main_only or (cell[2:] == MAIN and cell.network != "lingjun")
        ]
        for seed, cell in product(range(seeds), chosen):
            machines = racks.get(cell.network, grid)
            setting = JobSetting(
                machines=machines,
                cluster=cell.network,
                network="congested" if cell.network == "lingjun" else cell.network,
            )
            missing = [name for name in POLICIES if (*cell, seed, name) not in done]
            jobs = prepare(trace, cell, setting, count, seed) if missing else []
            for policy in missing:
                summary, _, _ = simulate(policy, jobs, setting, seed)
                figures = {name: getattr(summary, name) for name in (*FIGURES, "work_bound_s")}
                bound = {"makespan_bound_s": summary.makespan_bound_s}
                out.write(json.dumps({"key": (*cell, seed, policy), **figures, **bound}) + "\n")
                out.flush()


def read(lines: Path) -> Iterator[dict]:
    for line in lines.read_text().splitlines():
        yield json.loads(line)


def prepare(trace: list[Job], cell: Cell, setting: JobSetting, count: int, seed: int) -> list[Job]:
    """Jobs of one cell: drawn from a window four times as long, with the share of gangs asked for."""
    rng = np.random.default_rng(seed)
    largest = setting.topology.gpus
    start = int(rng.integers(0, len(trace) - 4 * count))
    near = [job for job in trace[start : start + 4 * count] if job.gpus <= largest]
    gangs, singles = [job for job in near if job.gpus > 1], [job for job in near if job.gpus == 1]
    wide = round(cell.gangs * count)
    drawn = [gangs[i] for i in rng.integers(0, len(gangs), wide)]
    drawn += [singles[i] for i in rng.integers(0, len(singles), count - wide)]
    order = rng.permutation(count)
    jobs = [msgspec.structs.replace(drawn[i], id=str(number)) for number, i in enumerate(order)]
    kind, _, load = cell.arrivals.partition(" ")
    jobs = assign_models(jobs, rng, MODELS[cell.models])
    return rearrange(jobs, kind, rng=rng, gpus=largest, load=float(load or 1))


def _lingjun(topology: Topology) -> tuple[Machine, ...]:
    """The hosts of the first racks of the measured cluster, whole racks only, 512 GPUs or a little more."""
    machines: list[Machine] = []
    for rack in topology.racks:
        if len(machines) < LINGJUN_HOSTS:
            machines += [machine for machine in topology.machines if machine.rack == rack]
    return tuple(machines)


if __name__ == "__main__":
    main()
