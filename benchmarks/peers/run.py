"""Compare other servers with ours: the same model, client, arrivals and machine.

    SLIM_DATA=… python benchmarks/peers/run.py                    # everything, about 50 minutes; resumes
    SLIM_DATA=… python benchmarks/peers/run.py --only ours mosec  # some contenders
    python benchmarks/peers/run.py --report                       # tables and plot of existing results

Every result is one JSON file in --out. An existing result is not measured again unless --fresh. Because
machines drift, everything is measured in --rounds, every other one in reverse order, and the offline loop is
measured again right before each contender's throughput.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from contender import CONTENDERS, HERE, OUR_CONFIG, Contender, Running
from install import install
from measure import Client
from msgspec.structs import replace
from offline import rates_per_s
from report import write_report
from setting import Setting

from slimsched.cli.serving.scenario import test_examples
from slimsched.serving.options import SERVING
from slimsched.serving.scenario.files import shipped_model

WIDTHS = (0.25, 0.5, 1.0)
LOADS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 8.0)
CHOSEN = {"free": "", "sure": f"{SERVING}:sure=true"}
"""How our server may choose widths by itself: as usual, or stopping when sure."""

BATCHES = (8, 16, 32, 64, 128)


class Pieces:
    """Results by name, one file each."""

    def __init__(self, folder: Path, fresh: bool) -> None:
        self._folder, self._fresh = folder, fresh
        self._measured: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """Return the result of that name; measure it first if needed."""
        path = self._folder / f"{name}.json"
        if not self.has(name):
            path.write_bytes(msgspec.json.format(msgspec.json.encode(measure()), indent=1))
            self._measured.add(name)
            print(f"{name}: {_brief(self.measured(name))}", file=sys.stderr, flush=True)
        return self.measured(name)

    def measured(self, name: str) -> Any:
        """Return an existing result."""
        return msgspec.json.decode((self._folder / f"{name}.json").read_bytes())

    def has(self, name: str) -> bool:
        """Return whether the result exists and need not be measured again."""
        there = (self._folder / f"{name}.json").exists()
        return there and (not self._fresh or name in self._measured)


def main() -> None:
    """Measure the missing results, then report."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that started servers are stopped
    if not options.report:
        pieces = Pieces(options.out, options.fresh)
        examples = test_examples(shipped_model().spec, None)
        images, labels = examples.inputs[0], examples.labels
        if labels is None:
            raise SystemExit("correct answers need labels: set SLIM_DATA to a folder with CIFAR-100")
        rates = {w: pieces.get(f"offline-{w:g}", lambda w=w: offline_rates(w)) for w in WIDTHS}
        if "ours" in options.only:
            os.environ.setdefault(OUR_CONFIG, str(our_config(options.out, options.fresh)))
        contests: list[tuple[str, float | str]] = [
            (name, width)
            for name in options.only
            for width in (*options.widths, *(CHOSEN if name == "ours" else ()))
        ]
        for name in options.only:
            install(name, options.venvs)
        for number in range(options.rounds):
            for name, width in contests if number % 2 == 0 else reversed(contests):
                _contest(CONTENDERS[name], width, number, rates, pieces, options, (images, labels))
    write_report(options.out, options.plot)


def _contest(
    contender: Contender,
    chosen: float | str,
    number: int,
    rates: Any,
    pieces: Pieces,
    options: Any,
    data: Any,
) -> None:
    """Measure one contender for one round, at one width or as one of `CHOSEN`."""
    router = CHOSEN[chosen] if isinstance(chosen, str) else ""
    width = None if isinstance(chosen, str) else chosen
    label = f"{contender.name}-{chosen if width is None else f'{width:g}'}"
    terms: dict[str, float | str] = (
        {"plan": str(width)} if width is not None and not contender.package else {}
    )
    setting = replace(setting_for(width or 1.0, rates[width or 1.0], options), router=router)
    log = options.out / f"{label}.log"
    names = [f"{label}-{piece}.{number}" for piece in ("offline", "saturated", "half")]
    measures = bool(contender.package) or not options.loads_only  # a peer's queue follows its own throughput
    if width is not None and measures and not all(pieces.has(name) for name in names):
        own_per_s = rates[width]["images_per_s"]
        best = max(BATCHES, key=lambda b: rates[width][f"batch_{b}"])
        pieces.get(names[0], lambda: rates_per_s(width, (best,))[best])
        with Running(contender, setting.relaxed(), options.venvs, log):
            client = Client(contender, setting, *data)
            client.warm_up(terms)
            requests = max(40, round(own_per_s * options.seconds / options.images))
            pieces.get(names[1], lambda: client.saturated_per_s(terms, requests))
            half = (terms, 0.5 * own_per_s, options.seconds, options.arrivals)
            if not options.loads_only:
                pieces.get(names[2], lambda: client.loaded(*half))
    loads = options.loads if contender.package or width is None else ()
    if all(pieces.has(f"{label}-load-{load:g}.{number}") for load in loads):
        return
    if contender.package:
        setting = setting.for_rate(pieces.measured(f"{label}-saturated.0"))  # the rate it can hold
    else:
        terms = {**terms, "deadline_ms": options.deadline_ms}
    with Running(contender, setting, options.venvs, log):
        client = Client(contender, setting, *data)
        client.warm_up({})
        for load in loads:
            at = (terms, load * rates[1.0]["images_per_s"], options.seconds, options.arrivals)
            pieces.get(f"{label}-load-{load:g}.{number}", lambda at=at: client.loaded(*at))


def our_config(folder: Path, fresh: bool) -> Path:
    """Return our scenario with the profile of a core of this machine, which `slim profile` measures first."""
    profile, config = folder / "profile" / "core.json", folder / "two-cores.toml"
    if fresh or not profile.exists():
        print("measuring the profile of a core", file=sys.stderr, flush=True)
        profile.parent.mkdir(parents=True, exist_ok=True)
        profile.unlink(missing_ok=True)
        command = [sys.executable, "-c", "from slimsched.cli.app import main; main()", "profile"]
        command += ["--out", str(profile), "--name", "core", "--batches", "1,4,8,16,32", "--repeats", "5"]
        core = max(os.sched_getaffinity(0))
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, {core})
        )
    text = (HERE / config.name).read_text()
    config.write_text(text.replace('device = "cpu-core"', f'device = "{profile.resolve()}"'))
    return config.resolve()


def offline_rates(width: float) -> dict[str, float]:
    """Return the best rate of several batch sizes, and the rate of each."""
    rates = rates_per_s(width, BATCHES)
    return {"images_per_s": max(rates.values()), **{f"batch_{b}": rate for b, rate in rates.items()}}


def setting_for(width: float, rates: dict[str, float], options: Any) -> Setting:
    """Return a setting whose batch takes at most a third of the deadline."""
    deadline_s, cores = options.deadline_ms / 1e3, 2
    fits = [b for b in BATCHES if b >= options.images and cores * b / rates[f"batch_{b}"] <= deadline_s / 3]
    batch = max(1, max(fits, default=options.images) // options.images)
    plain = Setting(
        width=width,
        port=_free_port(),
        deadline_s=deadline_s,
        images=options.images,
        batch=batch,
        batch_s=cores * batch * options.images / rates["images_per_s"],
        queue=0,
    )
    return plain.for_rate(rates["images_per_s"])


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _brief(figures: Any) -> str:
    if not isinstance(figures, dict):
        return f"{figures:.0f} images/s"
    if "images_per_s" in figures:
        return f"{figures['images_per_s']:.0f} images/s"
    latency, late = figures["latency"], figures["dispatch_error"]
    return (
        f"{figures['offered_per_s']:.0f} offered, {figures['goodput_per_s']:.0f} in time, "
        f"{figures['correct_in_time_per_s']:.0f} correct; p50 {1e3 * (latency['p50_s'] or 0):.1f} ms, "
        f"p99 {1e3 * (latency['p99_s'] or 0):.1f} ms, left late p99 {1e3 * late['p99_s']:.1f} ms, "
        f"{figures['outcomes']}"
    )


def _options() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS))
    parser.add_argument("--loads", nargs="*", type=float, default=LOADS, help="shares of full-width capacity")
    parser.add_argument("--widths", nargs="*", type=float, default=WIDTHS)
    parser.add_argument("--loads-only", action="store_true", help="no throughput or latency at fixed widths")
    parser.add_argument("--images", type=int, default=8, help="images per request")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each run")
    parser.add_argument("--rounds", type=int, default=2, help="how often everything is measured")
    parser.add_argument("--deadline-ms", type=float, default=250.0)
    parser.add_argument("--arrivals", default="poisson")
    parser.add_argument("--venvs", type=Path, default=cache / "slim-peers")
    parser.add_argument("--out", type=Path, default=Path("runs/peers"))
    parser.add_argument("--plot", type=Path, default=None, help="PNG to draw; default: peers.png in --out")
    parser.add_argument("--fresh", action="store_true", help="measure existing results again")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
