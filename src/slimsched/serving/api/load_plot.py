"""A picture of a load run: what was sent and answered over time, and the latency."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slimsched.serving.api.load_generator import Sent
from slimsched.serving.telemetry.plots import COLOURS, pyplot


def plot_load(sent: Sequence[Sent], title: str, path: Path, *, deadline_s: float) -> None:
    """Rates over time, latency over time, latency CDF."""
    plt = pyplot()
    figure, (rates, scatter, cdf) = plt.subplots(1, 3, figsize=(16, 4.6), layout="constrained")
    figure.suptitle(title)
    due_s = np.array([one.due_s for one in sent])
    good = np.array([one.status == 200 for one in sent])
    took_s = np.array([one.done_s - one.due_s for one in sent])
    edges = np.linspace(0, max(float(due_s.max()), 1e-3), 61)
    width_s = edges[1] - edges[0]
    for label, chosen, colour in (
        ("due", np.ones(len(sent), dtype=bool), COLOURS[7]),
        ("answered", good, COLOURS[0]),
        ("not answered", ~good, COLOURS[3]),
    ):
        rates.stairs(np.histogram(due_s[chosen], edges)[0] / width_s, edges, label=label, color=colour)
    rates.set(xlabel="due (s)", ylabel="requests/s", title="Requests by the time they were due")
    rates.legend(fontsize=8)
    scatter.plot(due_s[good], np.maximum(took_s[good], 1e-4), ".", markersize=2, color=COLOURS[0])
    scatter.set(yscale="log", xlabel="due (s)", ylabel="latency (s)", title="Latency from the due time")
    ordered = np.sort(took_s[good])
    cdf.plot(
        np.maximum(ordered, 1e-4), np.arange(1, len(ordered) + 1) / max(1, len(ordered)), color=COLOURS[0]
    )
    cdf.set(xscale="log", xlabel="latency (s)", ylabel="share of answers", title="Latency")
    if deadline_s < 1e6:
        scatter.axhline(deadline_s, color="black", linestyle="--", linewidth=1)
        cdf.axvline(deadline_s, color="black", linestyle="--", linewidth=1)
    figure.savefig(path, dpi=110)
    plt.close(figure)
