"""Compare the throughput of ours and one peer in turn, with both up all the time, so that drift cancels out.

    SLIM_DATA=… python benchmarks/peers/side_by_side.py [--peer mosec] [--pairs 8] [--widths 1 0.5 0.25]
    SLIM_PEER_CONFIG=machine SLIM_DATA=… python benchmarks/peers/side_by_side.py       what slim serve chooses

The server that is not being measured idles. Ours keeps sampling its telemetry meanwhile; mosec does nothing.
"""

import argparse
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from contender import CONTENDERS, OUR_CONFIG, Running
from measure import Client
from run import Pieces, offline_rates, our_config, setting_for

from slimsched.cli.serving.scenario import test_examples
from slimsched.serving.scenario.files import shipped_model

SECONDS = 2.5


def main() -> None:
    """Print one line per width."""
    options = _options()
    examples = test_examples(shipped_model().spec, None)
    images, labels = examples.inputs[0], examples.labels
    if labels is None:
        raise SystemExit("images come with labels: set SLIM_DATA to a folder with CIFAR-100")
    if OUR_CONFIG not in os.environ:
        os.environ[OUR_CONFIG] = str(our_config(options.out, fresh=False))
    for width in options.widths:
        rates = Pieces(options.out, fresh=False).get(f"offline-{width:g}", lambda w=width: offline_rates(w))
        settings = {name: setting_for(width, rates, options) for name in ("ours", options.peer)}
        terms: dict[str, dict[str, float | str]] = {"ours": {"plan": str(width)}, options.peer: {}}
        running, clients = [], {}
        try:
            for name, setting in settings.items():
                log = options.out / f"side-{name}-{width:g}.log"
                running.append(Running(CONTENDERS[name], setting.relaxed(), options.venvs, log))
                clients[name] = Client(CONTENDERS[name], setting, images, labels)
                clients[name].warm_up(terms[name])
            measured: dict[str, list[float]] = {name: [] for name in settings}
            requests = max(40, round(SECONDS * rates["images_per_s"] / options.images))
            for pair in range(options.pairs):
                for name in settings if pair % 2 == 0 else reversed(settings):
                    measured[name].append(clients[name].saturated_per_s(terms[name], requests))
        finally:
            for one in running:
                one.stop()
        print(_line(width, options.peer, measured), flush=True)


def _line(width: float, peer: str, per_s: dict[str, list[float]]) -> str:
    ratios = sorted(own / other for own, other in zip(per_s["ours"], per_s[peer], strict=True))
    return (
        f"width {width:g}: ours {median(per_s['ours']):.0f}, {peer} {median(per_s[peer]):.0f} images/s; "
        f"ratio {median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )


def _options() -> Any:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", default="mosec", choices=[name for name in CONTENDERS if name != "ours"])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--widths", type=float, nargs="+", default=[1.0, 0.5, 0.25])
    parser.add_argument("--images", type=int, default=8, help="images per request")
    parser.add_argument("--deadline-ms", type=float, default=250.0)
    parser.add_argument("--venvs", type=Path, default=cache / "slim-peers")
    parser.add_argument("--out", type=Path, default=Path("runs/peers"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
