"""The event logs of seeded runs, as hashes: which runs, how to hash them, and how to rewrite the record.

Moving code must not change a single decision, so each run's log must stay the same byte for byte. A change
that is meant to change decisions rewrites the record, in the same commit, with

    python tests/log_hashes.py --write

and says in its message why which runs changed. Without `--write` the command lists the runs that differ.
"""

import argparse
import json
import sys
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from command_line import slim

RECORD = Path(__file__).with_name("log_hashes.json")

PAPER = ("simulate", "--scenario", "paper", "--seconds", "0.15", "--seed", "7")
EDGE = ("simulate", "--scenario", "edge-12", "--seed", "3")
JOBS = ("jobs", "simulate", "--cluster", "racks-64", "--jobs", "250", "--seed", "5")

ROUTERS = (
    *("random", "round-robin", "jsq", "power-of-two", "sed", "speed-jsq", "drift-plus-penalty", "slackfit"),
    *("lp", "ppo", "ppo-balanced", "ppo-efficient", "goal", "sharded:size=2"),
)
POLICIES = (
    *("fifo", "backfill", "fit-first", "srtf", "srsf", "tiresias", "gandiva", "max-min", "themis", "lwf"),
    *("a-srpt", "scored", "sia", "elastic", "dally", "no-wait", "fully-consolidated", "mean-tuner"),
    "manual:machine_s=600:rack_s=3600",
)
FAULTS = ("--kill=t4-0@0.1s", "--restore=t4-0@0.25s", "--slow=orin-0@0.05sx2", "--leave=cpu-1@0.05s")

RUNS: dict[str, tuple[str, ...]] = {
    **{f"router {name}": (*PAPER, "--router", name) for name in ROUTERS},
    "goal with limits": (*PAPER, "--goal", "accuracy>=75, p99<=80ms, min energy"),
    "goal that asks again until sure": (*PAPER, "--router", "goal:sure=true", "--goal", "p99<=80ms"),
    "goal in time, as served": (
        *("simulate", "--scenario", "laptop", "--router", "goal:in_time=0.7", "--seconds", "0.2"),
        *("--rate", "4000", "--deadline-ms", "500", "--as-served"),
    ),
    "goal beside warm choices": (*EDGE, "--router", "warm:goal", "--seconds", "0.1"),
    "goal with two models": (
        *("simulate", "--scenario", "laptop", "--router", "goal", "--seconds", "2", "--rate", "300"),
        *("--model", "slimresnet", "--model", "slimvit"),
    ),
    "goal on one large GPU": ("simulate", "--scenario", "h200", "--router", "goal", "--seconds", "0.03"),
    "sed among faults": (*EDGE, "--router", "sed", "--seconds", "0.4", "--rate", "3000", "--drain", *FAULTS),
    "bursts on a lone server": (
        "simulate",
        "--scenario",
        "algorithm1",
        "--router",
        "random",
        "--seconds",
        "3",
    ),
    **{f"policy {name}": (*JOBS, "--policy", name) for name in POLICIES},
    "dally among failures": (*JOBS, "--failures", "0.5", "--network", "oversubscribed", "--links", "shifted"),
    "dally with quotas": (*JOBS, "--policy", "dally", "--quota", "vc0=16", "--arrivals", "poisson"),
}
"""Every router and job policy that comes with the package, then what only certain options bring into play."""


def log_hash(run: str, folder: Path) -> str:
    """Carry a run out in this process and return the hash of its log."""
    path = folder / "events.jsonl"
    done = slim(*RUNS[run], "--log", str(path), "--json", seconds=60.0)
    assert done.code == 0, f"{run}: {done.err}"
    return hash_of(path)


def hash_of(path: Path) -> str:
    """Hash a log's lines, but of the header only what was run: neither the version nor a folder."""
    first, *entries = path.read_bytes().splitlines(keepends=True)
    header = json.loads(first)
    del header["slim"]
    header["setting"].pop("beside", None)
    found = sha256(json.dumps(header, sort_keys=True).encode())
    found.update(b"".join(entries))
    return f"{len(entries)} lines, {found.hexdigest()[:32]}"


def recorded() -> dict[str, str]:
    """Read the record."""
    return dict(json.loads(RECORD.read_text()))


def main() -> int:
    """Compare all runs with the record, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the record instead of comparing with it")
    with TemporaryDirectory() as folder:
        hashes = {run: log_hash(run, Path(folder)) for run in RUNS}
    before = recorded() if RECORD.exists() else {}
    changed = [run for run in RUNS if hashes[run] != before.get(run)] + [
        run for run in before if run not in RUNS
    ]
    for run in changed:
        print(f"{run}: {before.get(run, 'not recorded')} -> {hashes.get(run, 'no such run')}")
    print(f"{len(changed)} of {len(RUNS)} runs differ from the record")
    if parser.parse_args().write:
        RECORD.write_text(json.dumps(hashes, indent=1) + "\n")
        return 0
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
