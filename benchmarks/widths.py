"""How much a narrower model saves on this CPU, in arithmetic (counted) and in time (measured).

python benchmarks/widths.py [--batch 32] [--threads 1]
"""

import argparse
import time

import torch

from slimsched.models.loading import load
from slimsched.models.shipped import default_figures, default_spec
from slimsched.models.width import SEGMENTS, WIDTHS


def best_time_s(widths: tuple[float, ...], images: torch.Tensor, repeats: int) -> float:
    """Return the seconds for one batch through the folded segments, the best of several runs."""
    net = load().net
    segments = [
        net.instance(index, width=width, previous=widths[index - 1] if index else None)
        for index, width in enumerate(widths)
    ]
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        x = images
        for segment in segments:
            x = segment(x)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Print one row per width."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = torch.randn(options.batch, 3, 32, 32)
    spec, figures = default_spec(), default_figures()
    print(f"batch {options.batch}, {options.threads} thread(s), best of {options.repeats}")
    print("| width | million MACs | of 1.0 | ms per image | of 1.0 |\n|---|---|---|---|---|")
    rows = [(width, best_time_s((width,) * SEGMENTS, images, options.repeats)) for width in reversed(WIDTHS)]
    whole_macs, whole_s = figures.plan_macs(spec, spec.widest), rows[0][1]
    for width, seconds in rows:
        macs = figures.plan_macs(spec, spec.path(str(width)))
        ms = 1e3 * seconds / options.batch
        print(
            f"| {width} | {macs / 1e6:.1f} | 1/{whole_macs / macs:.1f} "
            f"| {ms:.2f} | 1/{whole_s / seconds:.1f} |"
        )


if __name__ == "__main__":
    main()
