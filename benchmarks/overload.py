"""Goodput under overload with deadlines: ours, and mosec with a bounded queue, in turn on the same cores.

    SLIM_DATA=… python benchmarks/overload.py [--venvs FOLDER] [--loads 1 2 4 8] [--rounds 2]

Every request has 8 images and a deadline of 500 ms. Ours chooses the widths; mosec runs at width 0.25 only.
The load is a multiple of the narrowest capacity: what ours answers at width 0.25 when the client always has
enough requests under way. Client and server share the cores.

Each piece is five seconds of Poisson arrivals at that load, then one second at half of the capacity. An
answer counts if it comes within the deadline from the moment the request left. `recovered` is when, after
the overload, the last request was refused or late.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np
from msgspec import Struct

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "peers"))

from contender import CONTENDERS, OUR_CONFIG, Contender, Running  # noqa: E402
from install import install  # noqa: E402
from open_loop import OpenLoop, Seen, poisson  # noqa: E402
from run import offline_rates, our_config, setting_for  # noqa: E402
from setting import Setting  # noqa: E402

from slimsched.cli.serving.scenario import test_examples  # noqa: E402
from slimsched.serving.api.client.load import Target  # noqa: E402
from slimsched.serving.scenario.files import shipped_model  # noqa: E402

NAMES = ("ours", "mosec")
BODIES = 64
AFTER_S, AFTER_LOAD = 2.0, 0.5


class Piece(Struct, frozen=True, kw_only=True):
    """What one contender did at one load; rates are images per second."""

    offered_per_s: float
    in_time_per_s: float
    answered: int  # requests with status 200
    late: int  # of those, after the deadline
    outcomes: dict[int, int]
    took_ms: tuple[float, float]  # median and 99th percentile of answers
    refused_ms: tuple[float, float]  # the same of refusals
    left_late_ms: float  # 99th percentile of how late the client was
    recovered_s: float


def main() -> None:
    """Measure and print the table."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        install(name, options.venvs)
    os.environ.setdefault(OUR_CONFIG, str(_config(options.out, options.deadline_ms / 1e3)))
    rates = offline_rates(0.25)
    setting = setting_for(0.25, rates, options)
    capacity = options.capacity or _capacity(setting, options)
    print(f"narrowest capacity {capacity:.0f} images/s", flush=True)
    pieces: dict[tuple[str, float], list[Piece]] = {}
    for number in range(options.rounds):
        for name in options.only if number % 2 == 0 else options.only[::-1]:
            own = setting.for_rate(capacity)
            with Running(CONTENDERS[name], own, options.venvs, options.out / f"{name}.log"):
                _warm_up(CONTENDERS[name], own, options)
                for load in options.loads:
                    piece = _measure(CONTENDERS[name], own, load, capacity, options, number)
                    pieces.setdefault((name, load), []).append(piece)
                    print(f"{name} at {load:g}: {_brief(piece)}", flush=True)
    _report(pieces, options)


def _config(folder: Path, deadline_s: float) -> Path:
    """Our scenario, with the profile of a core of this machine; a batch may take a third of the deadline."""
    config = our_config(folder, fresh=False)
    text = config.read_text().replace("batch_limit_s = 0.083", f"batch_limit_s = {deadline_s / 3:.3f}")
    config.write_text(text)
    return config


def _requests(contender: Contender, setting: Setting, terms: dict[str, float | str]) -> list[bytes]:
    """Write requests with different images, as the client sends them."""
    images = test_examples(shipped_model().spec, None).inputs[0][: BODIES * setting.images]
    write = Target().prefix(terms) if not contender.package else contender.prefix(terms)
    parts = np.split(np.ascontiguousarray(images), BODIES)
    return [write("127.0.0.1", {"images": part}) + part.tobytes() for part in parts]


def _capacity(setting: Setting, options: argparse.Namespace) -> float:
    """Images per second of ours at width 0.25, while enough requests are always under way."""
    ours = CONTENDERS["ours"]
    rates = []
    with Running(ours, setting, options.venvs, options.out / "capacity.log"):
        client = OpenLoop(setting.port, _requests(ours, setting, {"plan": "0.25"}))
        for _ in range(4):  # the first is a warm-up
            seen = client.run([0.0] * 500)
            done = sorted(one.done_s for one in seen if one.status == 200)
            first, last = len(done) // 5, 4 * len(done) // 5
            rates.append((last - first) * setting.images / (done[last] - done[first]))
        client.close()
    return median(rates[1:])


def _warm_up(contender: Contender, setting: Setting, options: argparse.Namespace) -> None:
    client = OpenLoop(setting.port, _requests(contender, setting, {}))
    for _ in range(8):
        seen = client.run(np.linspace(0.0, 1.0, 60).tolist())
        if sum(one.status == 200 for one in seen) > 50:
            break
    client.close()


def _measure(
    contender: Contender,
    setting: Setting,
    load: float,
    capacity: float,
    options: argparse.Namespace,
    seed: int,
) -> Piece:
    terms: dict[str, float | str] = {"deadline_ms": options.deadline_ms}
    client = OpenLoop(setting.port, _requests(contender, setting, terms))
    rng, calls_per_s = np.random.default_rng(seed), capacity / setting.images
    due_s = poisson(load * calls_per_s, options.seconds, rng)
    after = [options.seconds + at_s for at_s in poisson(AFTER_LOAD * calls_per_s, AFTER_S, rng)]
    time.sleep(1.0)
    seen = client.run([*due_s, *after])
    client.close()
    return _piece(seen, setting, options)


def _piece(seen: list[Seen], setting: Setting, options: argparse.Namespace) -> Piece:
    seconds, deadline_s = options.seconds, options.deadline_ms / 1e3
    during = [one for one in seen if one.due_s < seconds]
    good = [one for one in during if one.status == 200]
    in_time = sum(one.took_s <= deadline_s for one in good)
    refused = [one.took_s for one in during if one.status not in (0, 200)]
    bad = [one for one in seen if one.due_s >= seconds and (one.status != 200 or one.took_s > deadline_s)]
    return Piece(
        offered_per_s=len(during) * setting.images / seconds,
        in_time_per_s=in_time * setting.images / seconds,
        answered=len(good),
        late=len(good) - in_time,
        outcomes=dict(sorted(Counter(one.status for one in during).items())),
        took_ms=_percentiles_ms([one.took_s for one in good]),
        refused_ms=_percentiles_ms(refused),
        left_late_ms=_percentiles_ms([one.sent_s - one.due_s for one in during])[1],
        recovered_s=max([one.due_s - seconds for one in bad], default=0.0),
    )


def _percentiles_ms(values: list[float]) -> tuple[float, float]:
    if not values:
        return (0.0, 0.0)
    return (1e3 * float(np.percentile(values, 50)), 1e3 * float(np.percentile(values, 99)))


def _brief(piece: Piece) -> str:
    return (
        f"{piece.offered_per_s:.0f} offered, {piece.in_time_per_s:.0f} in time, {piece.late} of "
        f"{piece.answered} late, {piece.outcomes}, "
        f"answers {piece.took_ms[0]:.0f} / {piece.took_ms[1]:.0f} ms, "
        f"refusals {piece.refused_ms[0]:.1f} / {piece.refused_ms[1]:.0f} ms, client late "
        f"{piece.left_late_ms:.0f} ms, recovered after {piece.recovered_s:.2f} s"
    )


def _report(pieces: dict[tuple[str, float], list[Piece]], options: argparse.Namespace) -> None:
    best = {name: max(_in_time(pieces[name, load]) for load in options.loads) for name in options.only}
    print("\n| load | server | in time/s | of its best | late 200s | refused | refusal p50 | recovered |")
    print("|---|---|---|---|---|---|---|---|")
    for load in options.loads:
        for name in options.only:
            own = pieces[name, load]
            late, answered = sum(one.late for one in own), sum(one.answered for one in own)
            count = sum(sum(one.outcomes.values()) for one in own)
            print(
                f"| {load:g} × | {name} | {_in_time(own):.0f} | {_in_time(own) / best[name]:.2f} "
                f"| {late} of {answered} | {100 * (count - answered) / count:.0f} % "
                f"| {median(one.refused_ms[0] for one in own):.1f} ms "
                f"| {max(one.recovered_s for one in own):.2f} s |"
            )


def _in_time(pieces: list[Piece]) -> float:
    return median(one.in_time_per_s for one in pieces)


def _options() -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--loads", nargs="+", type=float, default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--images", type=int, default=8, help="images per request")
    parser.add_argument("--deadline-ms", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the overload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--capacity", type=float, default=0.0, help="images/s; 0: measured")
    parser.add_argument("--venvs", type=Path, default=cache / "slim-peers")
    parser.add_argument("--out", type=Path, default=Path("runs/overload"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
