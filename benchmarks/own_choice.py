"""What `slim serve` chooses for itself beside a scenario file, in turn.

    SLIM_DATA=… python benchmarks/own_choice.py [--file FILE] [--images 1 8] [--rounds 8]
    python benchmarks/own_choice.py --apart --model DIR --plans small large --file FILE --images 1 8 64
    python benchmarks/own_choice.py --start

wrk asks for one plan after another in a closed loop. For the shipped model `slim load` then sends an open
loop at 100 and 200 % of what the file carried at full width, and each server chooses freely: what counts is
correct answers in time per second. A row says both medians and the median of the ratios. Both servers are up
all the time, so that a machine's drift touches both; on a GPU, `--apart` launches one after the other.
`--start` times commands and starts instead, with measurements that are kept and without; `cpu_s` is what the
command took of a core, which a busy machine hardly changes.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from running import MACHINE, SLIM, running, serve_command
from wrk import run_wrk

from slimsched.models.spec import DEFAULT_MODEL, ModelSpec
from slimsched.serving.api.client.client import write_request
from slimsched.serving.measure.examples import made_up_examples
from slimsched.serving.scenario.files import read_model

DEADLINE_MS = 500
FILE, OWN = "file", "own choice"
WIDEST = "1.0"
Row = tuple[int, str | float]
"""Images per request, and the plan, or the load where plans are chosen freely."""


def main() -> None:
    """Print a row for each way of asking."""
    options = _options()
    if options.start:
        _starts(options)
        return
    is_shipped = options.model == DEFAULT_MODEL
    ways: list[str | float] = [*options.plans, *(options.loads if is_shipped else ())]
    rows: list[Row] = list(product(options.images, ways))
    found: dict[Row, dict[str, list[float]]] = {row: {FILE: [], OWN: []} for row in rows}
    with ExitStack() as servers:
        urls = (
            {}
            if options.apart
            else {name: servers.enter_context(_served(name, options)) for name in (FILE, OWN)}
        )
        for number in range(options.rounds if options.apart else 1):
            for name in (FILE, OWN)[:: 1 if number % 2 == 0 else -1] if options.apart else ():
                with _served(name, options) as url:
                    for row in rows:
                        found[row][name].append(_ask(url, row, found, options))
        for row, number in product(rows, range(0 if options.apart else options.rounds)):
            for name in (FILE, OWN)[:: 1 if number % 2 == 0 else -1]:
                found[row][name].append(_ask(urls[name], row, found, options))
            if number == options.rounds - 1:
                _say(row, found[row])
    for row in rows if options.apart else ():
        _say(row, found[row])


@contextmanager
def _served(name: str, options: argparse.Namespace) -> Iterator[str]:
    port = options.port + 2 * (name == OWN)
    url = f"http://127.0.0.1:{port}"
    command = serve_command(options.file if name == FILE else MACHINE, options.fronts, port)
    if options.model != DEFAULT_MODEL:
        command += ["--model", options.model]
    with TemporaryDirectory() as folder, running(command, f"{url}/v2/health/ready", Path(folder, "log")):
        yield url


def _say(row: Row, rates: dict[str, list[float]]) -> None:
    ratio = statistics.median(own / file for file, own in zip(rates[FILE], rates[OWN], strict=True))
    medians = {name: round(statistics.median(per_s)) for name, per_s in rates.items()}
    way = {"plan": row[1]} if isinstance(row[1], str) else {"load": row[1]}
    print(json.dumps({"images": row[0], **way, **medians, "ratio": round(ratio, 3)}), flush=True)


def _ask(url: str, row: Row, found: dict[Row, dict[str, list[float]]], options: argparse.Namespace) -> float:
    """Return images per second at a plan, or correct answers in time per second at a load."""
    images, way = row
    if isinstance(way, str):
        return _closed(url, images, way, options)
    return _free(url, images, way * statistics.median(found[images, WIDEST][FILE]) / images, options)


def _closed(url: str, images: int, plan: str, options: argparse.Namespace) -> float:
    """Return images per second at a plan, with enough requests under way."""
    spec: ModelSpec = read_model(options.model, rated=False).spec
    pixels = made_up_examples(spec, images).inputs[0]
    body, json_bytes = write_request({spec.inputs[0].name: np.asarray(pixels)}, ("classes",), {"plan": plan})
    result = run_wrk(
        url,
        f"/v2/models/{spec.name}/infer",
        body,
        json_bytes,
        connections=max(8, options.under_way // images),
        seconds=options.seconds,
    )
    return result.per_s * images


def _free(url: str, images: int, per_s: float, options: argparse.Namespace) -> float:
    """Return correct answers in time per second, at so many requests per second."""
    command = [*SLIM, "load", "--url", url, "--rate", f"{per_s:.1f}", "--seconds", f"{options.seconds:g}"]
    command += ["--images", str(images), "--deadline-ms", str(DEADLINE_MS), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return float(json.loads(done.stdout)["correct_in_time_per_s"])


def _starts(options: argparse.Namespace) -> None:
    """Print how long commands take, and how long `slim serve` takes until it is ready."""
    for words in (["--help"], ["serve", "--help"], ["serve", "--wrong"], ["serve", "--devices", "gpu"]):
        _say_times(" ".join(words), [_command_s(words) for _ in range(options.rounds)])
    for cache in ("unknown", "known"):
        times = list[tuple[float, float]]()
        for _ in range(options.rounds):
            with TemporaryDirectory() as folder:
                kept = Path(folder, "cache") if cache == "unknown" else options.cache
                times.append(_ready_s(options, kept, Path(folder, "log")))
        _say_times(f"serve, machine {cache}, until ready", times)


def _say_times(what: str, times: list[tuple[float, float]]) -> None:
    seconds, cpu_s = (round(statistics.median(column), 2) for column in zip(*times, strict=True))
    print(json.dumps({"command": what, "seconds": seconds, "cpu_s": cpu_s}), flush=True)


def _command_s(words: list[str]) -> tuple[float, float]:
    began_s, before_s = time.perf_counter(), _children_s()
    subprocess.run([*SLIM, *words], capture_output=True, check=False)
    return time.perf_counter() - began_s, _children_s() - before_s


def _ready_s(options: argparse.Namespace, cache: Path, log: Path) -> tuple[float, float]:
    """Time a start; of a core it is what the server took until it had also ended."""
    url, began_s = f"http://127.0.0.1:{options.port}/v2/health/ready", time.perf_counter()
    environment, before_s = {**os.environ, "SLIM_CACHE": str(cache)}, _children_s()
    with running(serve_command(MACHINE, 0, options.port), url, log, environment):
        took_s = time.perf_counter() - began_s
    return took_s, _children_s() - before_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--file", default="benchmarks/peers/two-cores.toml", help="the scenario file")
    parser.add_argument("--fronts", type=int, default=0, help="front processes with the file")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a model folder instead of the shipped model")
    parser.add_argument("--plans", nargs="+", default=[WIDEST, "0.5", "0.25"])
    parser.add_argument("--loads", type=float, nargs="*", default=[1.0, 2.0], help="when choosing freely")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8], help="images per request")
    parser.add_argument("--under-way", type=int, default=256, help="images asked for at a time")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round")
    parser.add_argument("--apart", action="store_true", help="never run both servers at once")
    parser.add_argument("--port", type=int, default=18600)
    parser.add_argument("--start", action="store_true", help="time commands and starts instead")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "slim-scheduler")
    return parser.parse_args()


if __name__ == "__main__":
    main()
