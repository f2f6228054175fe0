"""CPU time of the gateway process per call, without a device and without HTTP.

    python benchmarks/gateway_cpu.py [--images 1 8 64] [--plan 1.0] [--profile] [--source OTHER/src]

Gateway, router, metrics, dashboard and sockets are real, and so are the servers' schedulers and messages. But
servers wait instead of computing (`stand_in_server.py`), and fronts send calls from within instead of reading
HTTP (`stand_in_front.py`). The figure is processor time of the gateway's main thread over calls answered, so
it hardly depends on what else the machine does. With `--profile` it says which functions take it; profiling
itself makes all of it about twice as dear. With `--source`, the gateway of another checkout is measured in
turn with this one.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from running import running
from stand_in_front import SETTING, Sent

HERE = Path(__file__).parent
PROFILE = "SLIM_STAND_IN_PROFILE"
UNDER_WAY = {1: 256, 8: 128, 64: 48}
START_S, WARM_S = 60.0, 1.5


def serve() -> None:
    """Run `slim serve` with servers and fronts that stand in for the real ones."""
    from slimsched.cli.app import main
    from slimsched.serving.api.fronts import fronts
    from slimsched.serving.live import engine

    engine.SERVER, fronts.FRONT = "stand_in_server", "stand_in_front"
    sys.argv = ["slim", *sys.argv[2:]]
    if PROFILE not in os.environ:
        main()
        return
    import cProfile

    profile = cProfile.Profile(time.thread_time)
    signal.signal(signal.SIGUSR1, lambda *_: profile.enable())
    signal.signal(signal.SIGUSR2, lambda *_: profile.disable())
    try:
        main()
    finally:
        profile.dump_stats(os.environ[PROFILE])


def kernel_s(pid: int) -> float:
    """Return the part of a process's processor time that went into the system."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[12]) / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the processor time of a process's main thread."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def measure(images: int, source: Path, options: argparse.Namespace) -> Mapping[str, object]:
    """Serve, wait until calls are under way, and see what they take."""
    with TemporaryDirectory() as folder:
        counts_path, profile_path, log = (Path(folder) / name for name in ("counts", "profile", "log"))
        np.zeros((options.fronts, 2), np.uint64).tofile(counts_path)
        sent = Sent(
            images=images,
            calls=options.calls or UNDER_WAY.get(images, 64),
            plan=options.plan,
            counts=str(counts_path),
            deadline_s=options.deadline_s,
        )
        environment = {
            **os.environ,
            "PYTHONPATH": f"{source}:{HERE}",
            SETTING: msgspec.json.encode(sent).decode(),
            **({PROFILE: str(profile_path)} if options.profile else {}),
        }
        command = [sys.executable, __file__, "serve", "serve", "--config", options.config]
        command += ["--fronts", str(options.fronts), "--http-port", str(options.port), "--grpc-port", "0"]
        counts = np.memmap(counts_path, np.uint64, "r", shape=(options.fronts, 2))
        with running(command, None, log, environment) as pid:
            give_up_s = time.monotonic() + START_S
            while not counts[:, 0].all():
                if time.monotonic() > give_up_s:
                    raise SystemExit(log.read_text())
                time.sleep(0.05)
            time.sleep(WARM_S)
            if options.profile:
                os.kill(pid, signal.SIGUSR1)
            before, cpu_before_s, began_s = counts.sum(axis=0), cpu_s(pid), time.monotonic()
            kernel_before_s = kernel_s(pid)
            time.sleep(options.seconds)
            kernel = kernel_s(pid) - kernel_before_s
            took_s, passed_s = cpu_s(pid) - cpu_before_s, time.monotonic() - began_s
            if options.profile:
                os.kill(pid, signal.SIGUSR2)
            calls, failed = (counts.sum(axis=0) - before).tolist()
        if options.profile:
            show(profile_path, calls, options.lines)
    return {
        "images": images,
        "us_per_call": round(1e6 * took_s / calls, 1),
        "us_per_image": round(1e6 * took_s / calls / images, 2),
        "kernel": round(kernel / took_s, 2),
        "images_per_s": round(calls * images / passed_s),
        "failed": failed,
        "core": round(took_s / passed_s, 2),
    }


def show(path: Path, calls: int, lines: int) -> None:
    """Print where the time went, per call."""
    import pstats

    stats = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    rows = sorted(
        ((own, total, count, where) for where, (_, count, own, total, _) in stats.items()), reverse=True
    )
    print(f"{'own µs':>8} {'total µs':>9} {'times':>7}   per call")
    for own, total, count, (file, line, name) in rows[:lines]:
        place = f"{Path(file).name}:{line} {name}" if line else name
        print(f"{1e6 * own / calls:8.2f} {1e6 * total / calls:9.2f} {count / calls:7.2f}   {place}")


def main() -> None:
    """Measure each size in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default=str(HERE / "h200-one-batch.toml"))
    parser.add_argument("--images", type=int, nargs="*", default=[1, 8, 64])
    parser.add_argument("--calls", type=int, default=0, help="calls under way, of all fronts together")
    parser.add_argument("--plan", default="1.0", help="stated plan; empty: the router chooses")
    parser.add_argument("--deadline-s", type=float, default=1e18)
    parser.add_argument("--fronts", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--port", type=int, default=18600)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--lines", type=int, default=40, help="functions to show")
    parser.add_argument("--source", type=Path, help="src of another checkout")
    options = parser.parse_args()
    sources = {"this": HERE.parent / "src", **({"other": options.source} if options.source else {})}
    for images in options.images:
        for _ in range(options.rounds):
            for name, source in sources.items():
                print(json.dumps({"source": name, **measure(images, source, options)}), flush=True)


if __name__ == "__main__":
    serve() if sys.argv[1:2] == ["serve"] else main()
