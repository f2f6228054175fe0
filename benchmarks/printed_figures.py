"""Make the main figures of the documents again, and show those that moved by more than their interval.

python benchmarks/printed_figures.py             # all that need no GPU: some ten minutes on two free cores
python benchmarks/printed_figures.py ties goals  # some of them

Runs are seeded, so a figure moves only if decisions, profiles or the simulated world have changed. Who
changes them on purpose runs this, and corrects the page and the value here. `jobs` needs SLIM_DATA.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slimsched.serving.scenario.files import load_scenario

ROOT = Path(__file__).parents[1]
COMPARE = "slim compare --scenario paper --accuracy paper --seed 100 --json --seeds"
PAPER = "python benchmarks/paper/run.py --seed 100 --accuracy paper --json"


class Figure(NamedTuple):
    """A figure as a page prints it: what `value` is of (a router or policy), and half its interval."""

    of: str
    field: str
    value: float
    interval: float


class Group(NamedTuple):
    """Figures that one command makes, and the page that prints them."""

    page: str
    command: str
    figures: tuple[Figure, ...]


SCALES = {"accuracy": 100.0, "bound_share": 100.0, "latency_p99_s": 1e3, "jct_mean_s": 1 / 3600}
SCALES |= {"makespan_s": 1 / 3600}
"""From the unit of a row to that of the page: per cent, milliseconds and hours."""


def both(of: str, accuracy: float, around: float, p99_ms: float, p99_around: float) -> tuple[Figure, Figure]:
    """Return accuracy in per cent and p99 in milliseconds of a router, each with its interval."""
    return Figure(of, "accuracy", accuracy, around), Figure(of, "latency_p99_s", p99_ms, p99_around)


def gang(of: str, jct_h: float, around: float, makespan_h: float) -> tuple[Figure, Figure]:
    """Return the mean completion time of a job policy in hours, and its makespan to a tenth of an hour."""
    return Figure(of, "jct_mean_s", jct_h, around), Figure(of, "makespan_s", makespan_h, 0.05)


GROUPS = {
    "bound": Group(
        "docs/results.md",
        "slim bound --scenario paper --accuracy paper --json",
        (Figure("", "accuracy", 75.75, 0.01),),
    ),
    "calibration": Group(
        "docs/paper.md",
        "slim simulate --scenario paper --router random --accuracy paper --json",
        (
            Figure("random", "accuracy", 73.52, 0.05),
            Figure("random", "latency_mean_s", 8.534, 0.09),
            Figure("random", "completed", 243_634, 2_500),
            Figure("random", "energy_paper_j", 1743.9, 20.0),
            Figure("random", "gpu_var", 0.0064, 0.0003),
        ),
    ),
    "routers": Group(
        "docs/results.md",
        f"{COMPARE} 5 --seconds 3.5 --warmup 1 --routers "
        "sed:share=0.0578,drift-plus-penalty:v=0.612,goal,ppo:v=2",
        (
            *both("sed:share=0.0578", 75.30, 0.04, 94, 3),
            *both("drift-plus-penalty:v=0.612", 75.36, 0.03, 71, 1),
            *both("goal", 75.47, 0.04, 76, 1),
            *both("ppo:v=2", 75.57, 0.03, 83, 2),
        ),
    ),
    "goals": Group(
        "docs/results.md",
        f"{PAPER} goals",
        (
            *both("goal[p99<=60ms]", 74.76, 0.06, 59.4, 0.5),
            *both("goal[p99<=80ms]", 75.45, 0.04, 76, 1),
            *both("goal[accuracy>=75, min energy]", 74.97, 0.02, 68, 1),
            *both("goal[accuracy>=74, min latency]", 73.97, 0.01, 62, 1),
        ),
    ),
    "half load": Group(
        "docs/results.md",
        f"{COMPARE} 3 --rate 25671 --seconds 4 --warmup 2 --routers "
        "goal,goal:planner=0,goal:integral_per_s=0",
        (
            *both("goal", 72.26, 0.14, 80, 3),
            *both("goal:planner=0", 72.22, 0.16, 110, 5),
            *both("goal:integral_per_s=0", 71.84, 0.03, 54, 3),
        ),
    ),
    "jobs": Group(
        "benchmarks/jobs.md",
        "slim jobs compare --trace helios --jobs 4000 --seeds 5 --network congested --arrivals batch "
        "--policies tiresias,gandiva,dally --json",
        (
            *gang("tiresias", 13.04, 0.005, 335.9),
            *gang("gandiva", 18.74, 0.005, 214.3),
            *gang("dally", 8.80, 0.005, 163.2),
        ),
    ),
}


def main() -> None:
    """Run the named groups, or all, and end with 1 if a figure has moved."""
    chosen = [words for words in sys.argv[1:] if not words.startswith("-")] or ["ties", *GROUPS]
    if unknown := [name for name in chosen if name != "ties" and name not in GROUPS]:
        sys.exit(f"unknown: {', '.join(unknown)}; there are ties, {', '.join(GROUPS)}")
    moved = 0
    for name in chosen:
        if name == "ties":
            print("ties of the nearest neighbour (docs/paper.md):", ties())
        else:
            moved += len(list(map(print, moves(GROUPS[name]))))
            print(f"{name}: done", flush=True)
    sys.exit(1 if moved else 0)


def moves(group: Group) -> Iterator[str]:
    """Run a group's command; say of each figure that moved what it was and is."""
    program, *words = shlex.split(group.command)
    here = sys.executable if program == "python" else str(Path(sys.executable).with_name(program))
    done = subprocess.run([here, *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        yield f"{group.command}: {done.stderr.strip().splitlines()[-1]}"
        return
    made = list(rows(json.loads(done.stdout)))
    for figure in group.figures:
        row = next(row for row in made if figure.of in (row.get("router"), row.get("policy"), ""))
        now = SCALES.get(figure.field, 1.0) * row[figure.field]
        if abs(now - figure.value) > figure.interval * 1.0001:
            yield (
                f"{group.page}: {figure.of} {figure.field} was {figure.value:g} ± {figure.interval:g}, "
                f"is {now:.6g} ({group.command})"
            )


def rows(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all rows of figures in a command's answer, wherever they stand in it."""
    if isinstance(value, dict):
        if {"accuracy", "makespan_s"} & value.keys():
            yield value
        for inner in value.values():
            yield from rows(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from rows(inner)


def ties() -> str:
    """Say what the paper's nearest neighbour gives in the mean over all plans, by who wins a tie."""
    table = load_scenario("paper", accuracy="paper:nearest").cluster.models[0].quality
    known = np.flatnonzero(table.measured)
    plans = np.array(table.tree.plans)
    apart = np.abs(plans[:, None] - plans[None, known]).sum(axis=2)
    is_nearest, values = apart == apart.min(axis=1, keepdims=True), 100 * table.by_plan[known]
    best, worst = np.where(is_nearest, values, 0).max(axis=1), np.where(is_nearest, values, 100).min(axis=1)
    mean = (is_nearest * values).sum(axis=1) / is_nearest.sum(axis=1)
    several = int((is_nearest.sum(axis=1) > 1).sum())
    figures = f"best {best.mean():.2f} %, mean {mean.mean():.2f} %, worst {worst.mean():.2f} %"
    return f"{several} of {len(plans)} plans; {figures}"


if __name__ == "__main__":
    main()
