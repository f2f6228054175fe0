"""Measures mean power while some work runs repeatedly, between two ticks of a counter."""

from collections.abc import Callable
from threading import Event, Thread
from time import monotonic

from slimsched.serving.execution.live.power_meter import PowerMeter

PATIENCE_S = 10.0


def mean_power_w(meter: PowerMeter, work: Callable[[], object], *, at_least_s: float) -> float:
    """Return the mean watts from the counter's first change to its first change after `at_least_s`.

    NVML's counter changes only ten times per second, so a short window must begin and end with a change.
    Reading it takes milliseconds, so another thread does that.
    """
    changes: list[tuple[float, float]] = []
    enough = Event()

    def watch() -> None:
        began_s, last_j = monotonic(), meter.read(0.0).energy_j
        while not enough.is_set():
            reading = meter.read(0.0)
            if reading.energy_j != last_j:
                last_j = reading.energy_j
                changes.append((reading.at_s, last_j))
            seen_s = changes[-1][0] - changes[0][0] if changes else 0.0
            if seen_s >= at_least_s or monotonic() - began_s > PATIENCE_S:
                enough.set()
            enough.wait(0.001)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    while not enough.is_set():
        work()
    watcher.join()
    if len(changes) < 2:
        return 0.0
    (start_s, start_j), (end_s, end_j) = changes[0], changes[-1]
    return (end_j - start_j) / (end_s - start_s)
