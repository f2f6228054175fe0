"""`slim serve` on 1, 2, 3 or 8 cores, and with a quota: does it serve, with one computing thread per core?

    python benchmarks/allowed_cores.py [--cores 1 2 3 8] [--quota 1.0]

The server gets the first cores by affinity. With `--quota` it is also in a cgroup of its own, which gets that
much of them; this needs root. wrk asks at full width. Meanwhile the threads of server processes are counted
that ran for more than a tenth of the time: a server computes in one thread for each of its cores, and the one
that reads messages hardly runs.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from running import MACHINE, running, serve_command
from wrk import run_wrk

from slimsched.serving.api.client.client import write_request

BUSY = 0.1
"""A thread that ran for more than this share of the time computes."""


def main() -> None:
    """Print a row for each number of cores that this machine has."""
    options = _options()
    there = sorted(os.sched_getaffinity(0))
    for count in (one for one in options.cores if one <= len(there)):
        with TemporaryDirectory() as folder, quota(options.quota) as group:
            command = [
                "taskset",
                "-c",
                ",".join(map(str, there[:count])),
                *serve_command(MACHINE, 0, options.port),
            ]
            if group is not None:
                command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "-", *command]
            url = f"http://127.0.0.1:{options.port}"
            with running(command, f"{url}/v2/health/ready", Path(folder, "log")) as pid:
                row = loaded(pid, url, options.seconds)
        print(json.dumps({"cores": count, "quota": options.quota or None, **row}), flush=True)


def loaded(pid: int, url: str, seconds: float) -> dict[str, object]:
    """Ask for full width; return what was answered, and how many threads of each process computed."""
    pixels = np.random.default_rng(0).integers(256, size=(8, 3, 32, 32)).astype(np.uint8)
    body, json_bytes = write_request({"images": pixels}, ("classes",), {"width": 1.0})
    ask = partial(
        run_wrk, url, "/v2/models/slimresnet/infer", body, json_bytes, connections=32, seconds=seconds
    )
    with ThreadPoolExecutor() as pool:
        answers = pool.submit(ask)
        time.sleep(0.25 * seconds)
        before, began_s = ran_s(pid), time.monotonic()
        time.sleep(0.5 * seconds)
        after, passed_s = ran_s(pid), time.monotonic() - began_s
        result = answers.result()
    shares = {thread: (after[thread] - before[thread]) / passed_s for thread in before.keys() & after.keys()}
    computing = [thread for thread, share in shares.items() if share > BUSY and thread[0] != pid]
    return {
        "images_per_s": round(8 * result.per_s),
        "failed": result.failed,
        "servers": len({process for process, _ in shares}) - 1,
        "threads that compute": len(computing),
        "cores used": round(sum(shares.values()), 2),
    }


def ran_s(pid: int) -> dict[tuple[int, int], float]:
    """Return how long each thread of a process and of its children has run."""
    found = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        folder = Path(f"/proc/{pid}/task/{thread}")
        found[pid, int(thread)] = int((folder / "schedstat").read_text().split()[0]) / 1e9
        for child in (folder / "children").read_text().split():
            found |= ran_s(int(child))
    return found


@contextmanager
def quota(cores: float) -> Iterator[Path | None]:
    """Make a cgroup with so much time for the length of a block; none without a quota."""
    if not cores:
        yield None
        return
    old = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists()
    group = Path("/sys/fs/cgroup", "cpu" if old else "", "slim-quota")
    group.mkdir()
    try:
        time_us = round(100_000 * cores)
        name, text = ("cpu.cfs_quota_us", f"{time_us}") if old else ("cpu.max", f"{time_us} 100000")
        (group / name).write_text(text)
        yield group
    finally:
        group.rmdir()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2, 3, 8])
    parser.add_argument("--quota", type=float, default=0.0, help="cores' worth of time; 0: no limit")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--port", type=int, default=18700)
    return parser.parse_args()


if __name__ == "__main__":
    main()
