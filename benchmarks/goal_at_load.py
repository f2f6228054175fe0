"""What `goal` serves over HTTP at shares of the measured capacity: accuracy, latency and what is refused.

    python benchmarks/goal_at_load.py [--config FILE] [--images 64] [--loads 0.5 0.8 1 1.5]
    python benchmarks/goal_at_load.py … --out FILE     # also record everything that the simulator needs
    python benchmarks/goal_at_load.py … --simulate     # also simulate each load, and print both
    python benchmarks/goal_at_load.py --again FILE     # fit and simulate a recording again, without a server

wrk first measures the capacity: images per second at the widest plan in a closed loop. Then clients send
Poisson arrivals at shares of it, with a deadline, and the router chooses. Accuracy is that of the plans
served, by the model's table. Every row says what the GPU and the processes took.

With `--out` or `--simulate`, the server keeps event logs, and a calibration comes before the loads: other
arrivals at a load that the whole path can carry (`--calibrate-at`).
"""

import argparse
import json
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
from data_plane import PATH, Taken, measure
from open_clients import run_clients, write_http
from open_loop import Seen
from recording import Recording, Window, calls_table, from_start, log_zero_s
from running import running, serve_command
from served_log import ServedLog, Table

from slimsched.cli.serving.scenario import LiveScenarioOptions
from slimsched.serving.api.client_message import write_request
from slimsched.serving.api.limits import Limits
from slimsched.serving.execution.scenario import Scenario

COUNTS = re.compile(r"^(slim_images_[a-z_]+)(?:\{([^}]*)\})? ([\d.e+]+)$", re.MULTILINE)
THROTTLED = Path("/sys/fs/cgroup/cpu.stat")
WARM_UP_S = 1.0
CALIBRATION_SEED = 7919
FULL_S = 2.0
"""How much of the measurement of the capacity is kept, at its end."""
MARGIN_S = 0.2
"""How much of the log before and after a window is kept."""


def counted(url: str) -> dict[str, float]:
    """Read the server's counts of examples."""
    with urlopen(f"{url}/metrics") as page:
        text = page.read().decode()
    counts: dict[str, float] = {}
    for name, labels, value in COUNTS.findall(text):
        outcome = "_answered" if 'outcome="answered"' in labels else ""
        counts[name + outcome] = counts.get(name + outcome, 0.0) + float(value)
    return counts


def main() -> None:
    """Measure the capacity, then each load, and print a row for each; record or simulate if asked to."""
    options = parsed()
    if options.again:
        recording = Recording.read(options.again)
    else:
        recording = serve_and_measure(options)
        if options.out:
            recording.write(options.out)
    if options.again or options.simulate:
        from simulated_loads import print_beside  # not needed to record

        print_beside(recording)


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default=str(Path(__file__).parent / "h200-one-batch.toml"))
    parser.add_argument("--fronts", type=int, default=6)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--loads", type=float, nargs="*", default=[0.5, 0.8, 1.0, 1.5])
    parser.add_argument("--deadline-ms", type=float, default=250.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--port", type=int, default=18500)
    parser.add_argument("--wrk", default="wrk")
    parser.add_argument("--calibrate-at", type=float, default=0.5)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--again", type=Path)
    return parser.parse_args()


def serve_and_measure(options: argparse.Namespace) -> Recording:
    """Serve, measure the capacity and all loads, and return what was seen."""
    url, images, keeps = f"http://127.0.0.1:{options.port}", options.images, options.out or options.simulate
    pixels = np.random.default_rng(0).integers(256, size=(images, 3, 32, 32)).astype(np.uint8)
    windows: list[Window] = []
    with TemporaryDirectory() as folder:
        logs = Path(folder) / "logs"
        command = serve_command(options.config, options.fronts, options.port, logs if keeps else None)
        with running(command, f"{url}/v2/health/ready", Path(folder) / "log") as root:
            body, json_bytes = write_request({"images": pixels}, ("classes",), {"plan": "1.0"})
            row = measure(url, root, body, json_bytes, PATH, images, options)
            full_s = time.perf_counter()
            print(json.dumps({"capacity": True, **row}), flush=True)
            capacity = float(str(row["images_per_s"]))
            loads = [(load, round(100 * load)) for load in options.loads]
            if keeps:
                loads.insert(0, (options.calibrate_at, CALIBRATION_SEED))
            for load, seed in loads:
                windows.append(measure_load(options, root, load, capacity, seed, pixels))
                name = "calibration" if seed == CALIBRATION_SEED else "load"
                print(json.dumps({name: load, **windows[-1].live}), flush=True)
        setting = {name: str(value) for name, value in vars(options).items()}
        setting |= {"capacity": capacity, "config_text": scenario_text(options.config)}
        if keeps:
            setting["paths"] = add_logs(windows, logs, options.config, full_s)
    return Recording(setting, windows)


def measure_load(
    options: argparse.Namespace, root: int, load: float, capacity: float, seed: int, pixels: Any
) -> Window:
    """Send one load, and return what became of it."""
    url, rate = f"http://127.0.0.1:{options.port}", load * capacity / options.images
    request = write_http(PATH, pixels, {"deadline_ms": options.deadline_ms})
    how = {"clients": options.clients, "seed": seed, "receipts": bool(options.out or options.simulate)}
    run_clients(options.port, [request], rate, WARM_UP_S, **how)
    before = counted(url)
    rested = throttled()
    with Taken(root) as taken:
        seen = run_clients(options.port, [request], rate, options.seconds, **how)
    rests = {name: count - rested[name] for name, count in throttled().items()}
    after = counted(url)
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    live = figures(seen, grown, options) | taken.figures | rests
    return Window(load, live, {"calls": calls_table(seen)})


def throttled() -> dict[str, int]:
    """Return how often and how long the system made this group of processes rest, where it says so."""
    try:
        pairs = [line.split() for line in THROTTLED.read_text().splitlines()]
    except OSError:
        return {}
    return {name: int(value) for name, value in pairs if "throttled" in name}


def figures(seen: list[Seen], grown: dict[str, float], options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one load."""
    took_ms = np.array([1e3 * one.took_s for one in seen if one.status == 200])
    left_late_ms = 1e3 * float(np.percentile([one.sent_s - one.due_s for one in seen], 99))
    answered = max(1.0, grown.get("slim_images_total_answered", 0.0))
    return {
        "offered_images_per_s": round(len(seen) * options.images / options.seconds),
        "answered_images_per_s": round(len(took_ms) * options.images / options.seconds),
        "late": int((took_ms > options.deadline_ms).sum()),
        "refused": sum(one.status in (429, 503, 504) for one in seen),
        "other": sum(one.status not in (200, 429, 503, 504) for one in seen),
        "left_late_ms": round(left_late_ms, 1),
        "accuracy": round(100 * grown["slim_images_correct_expected_total"] / answered, 2),
        "mean_ms": round(float(took_ms.mean()), 2) if len(took_ms) else None,
        "p99_ms": round(float(np.percentile(took_ms, 99)), 2) if len(took_ms) else None,
    }


def scenario_text(config: str) -> str:
    """Return the text of the scenario file, so that a recording says what was run."""
    return Path(config).read_text() if config.endswith(".toml") else ""


def add_logs(windows: list[Window], logs: Path, config: str, full_s: float) -> list[list[int]]:
    """Add to each window what the event logs say about it, and let its times count from its start.

    The calibration gets the batches of the capacity's measurement too, which ended at `full_s`. Return the
    paths through the model that the tables name by number.
    """
    log = ServedLog(logs, list(scenario_of(config).cluster.names))
    everything = log.between(-np.inf, np.inf)
    for window in windows:
        calls = window.tables["calls"]
        zero_s = log_zero_s(calls, everything["arrived"], everything["done"])
        start_s = float(calls["due_s"][0])
        end_s = float(np.nanmax(np.append(calls["done_s"], calls["due_s"])))
        tables: dict[str, Table] = log.between(start_s - MARGIN_S - zero_s, end_s + MARGIN_S - zero_s)
        window.tables = {name: from_start(table, start_s - zero_s) for name, table in tables.items()}
        if window is windows[0]:
            full = log.between(full_s - FULL_S - zero_s, full_s - zero_s)["batch"]
            window.tables["full"] = from_start(full, full_s - FULL_S - zero_s)
        window.tables["calls"] = from_start(calls, start_s)
    return [list(path) for path in log.paths]


def scenario_of(config: str) -> Scenario:
    """Return the scenario that a server of this configuration runs."""
    is_file = config.endswith(".toml")
    options = LiveScenarioOptions(config=Path(config)) if is_file else LiveScenarioOptions(scenario=config)
    return options.read().for_clients(Limits().queue_s).scenario


if __name__ == "__main__":
    main()
