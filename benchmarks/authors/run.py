"""Rivals as their authors wrote them, beside ours, on the same jobs. Nothing of theirs is copied here.

    git clone https://github.com/SymbioticLab/Tiresias
    git clone https://github.com/stanford-futuredata/gavel && make -C gavel/scheduler rpc_stubs
    git clone https://github.com/Rivendile/Muri
    git clone https://github.com/msr-fiddle/blox
    python benchmarks/authors/run.py --trace helios --data ~/data --tiresias Tiresias \\
        --gavel gavel --muri Muri --blox blox --python old-venv/bin/python

`--trace` may also be a file, such as `traces/philly.csv` of Sia's simulator. `--python` has cvxpy with ECOS,
numpy, grpcio and psutil for Gavel and Muri, pandas 1.5 for Blox; Tiresias needs nothing. A flat pool of
`--gpus`.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import blox
import gavel
import our_side
import tiresias

from slimsched.jobs.domain import Job

Theirs = Callable[[str, Sequence[Job], Path], dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trace", default="helios")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", default=sys.executable)
    for name in ("tiresias", "gavel", "muri", "blox"):
        parser.add_argument(f"--{name}", type=Path)
    given = parser.parse_args()

    def jobs(sizes: Sequence[int]) -> list[Job]:
        return our_side.take(given.trace, given.data, given.jobs, given.seed, sizes)

    print("| authors' code | rule | jobs | | theirs | ours | difference |\n|---|---|---|---|---|---|---|")
    any_size = range(1, given.gpus + 1)
    if given.tiresias:
        _tiresias(given.tiresias.resolve(), jobs(any_size), given.gpus)
    if given.gavel:
        for reset_s in (gavel.RESET_S, 0):
            _gavel(given.gavel.resolve(), jobs(any_size), given.gpus, given.python, reset_s)
    if given.muri:
        _muri(given.muri.resolve(), jobs(tiresias.MURI_SIZES), given.gpus, given.python)
    if given.blox:
        _blox(given.blox.resolve(), jobs(any_size), given.gpus, given.python)


def _tiresias(checkout: Path, jobs: Sequence[Job], gpus: int) -> None:
    """Milliseconds for the rules that have no times of their own, seconds for the one that has."""
    free = {rule: schedule for rule, schedule in tiresias.SCHEDULES.items() if rule != "tiresias"}
    show("Tiresias", free, jobs, gpus, lambda *run: tiresias.run(checkout, *run[:2], gpus, run[2], 1000))
    timed = {"tiresias": tiresias.SCHEDULES["tiresias"]}
    whole = our_side.in_whole_seconds(jobs)
    show("Tiresias", timed, whole, gpus, lambda *run: tiresias.run(checkout, *run[:2], gpus, run[2], 1))


def _gavel(checkout: Path, jobs: Sequence[Job], gpus: int, python: str, reset_s: int) -> None:
    def run(schedule: str, these: Sequence[Job], folder: Path) -> dict[str, float]:
        return gavel.run(checkout, schedule, these, gpus, folder, python, reset_s=reset_s)

    whole = our_side.in_whole_seconds(jobs)
    show(f"Gavel, an allocation every {reset_s} s", gavel.SCHEDULES, whole, gpus, run)


def _muri(checkout: Path, jobs: Sequence[Job], gpus: int, python: str) -> None:
    def run(schedule: str, these: Sequence[Job], folder: Path) -> dict[str, float]:
        return tiresias.run_muri(checkout, schedule, these, gpus, folder, python)

    show("Muri", tiresias.MURI_SCHEDULES, jobs, gpus, run)


def _blox(checkout: Path, jobs: Sequence[Job], gpus: int, python: str) -> None:
    def run(schedule: str, these: Sequence[Job], folder: Path) -> dict[str, float]:
        return blox.run(checkout, schedule, these, gpus, folder, python)

    show("Blox", blox.SCHEDULES, blox.in_rounds(jobs), gpus, run)


def show(name: str, schedules: dict[str, str], jobs: Sequence[Job], gpus: int, run: Theirs) -> None:
    """Print a row of figures for each schedule."""
    for rule, schedule in schedules.items():
        with tempfile.TemporaryDirectory() as folder:
            theirs = our_side.figures(run(schedule, jobs, Path(folder)), jobs)
        ours = our_side.figures(our_side.simulate(our_side.INSTANT[rule](), jobs, gpus), jobs)
        for what, a, b in zip(("mean JCT", "makespan", "mean wait"), theirs, ours, strict=True):
            off = "equal" if f"{a:.3f}" == f"{b:.3f}" else f"{100 * (b / a - 1):+.2f} %"
            print(f"| {name} | {rule} (`{schedule}`) | {len(jobs)} | {what} | {a:,.3f} | {b:,.3f} | {off} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
