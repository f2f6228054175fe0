"""Jobs that look like Helios' when no trace is at hand.

Fitted to the 125,303 GPU jobs of Helios Venus (CC-BY 4.0) by `fit`: the share of each GPU demand, and
quantiles of the service time by class of demand and of the gaps between arrivals, drawn by inverse
transform (linear between quantiles on a logarithmic scale). The longest gap is cut so that the mean agrees.
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from slimsched.jobs.domain.job import Job
from slimsched.kernel.errors import ConfigError

DEMANDS = {
    1: 0.51838, 2: 0.05546, 3: 0.00161, 4: 0.07258, 5: 0.00078, 6: 0.00164, 7: 0.00197, 8: 0.24734,
    16: 0.04159, 24: 0.00899, 32: 0.02717, 40: 0.00287, 48: 0.00254, 56: 0.00176, 64: 0.00233, 72: 0.00077,
    80: 0.0015, 88: 0.00033, 96: 0.00059, 104: 0.00051, 112: 0.00041, 120: 0.00151, 128: 0.00375,
    136: 0.00038, 144: 0.00034, 152: 0.00094, 160: 0.00181,
}  # fmt: skip
QUANTILES = (
    0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99,
    0.995, 1,
)  # fmt: skip
SERVICE_S = {
    1: (1, 2, 6, 17, 45, 89, 129, 190, 312, 682, 1180, 2040, 3080, 8450, 15700, 33400, 57500, 95100, 173e3,
        173e3, 173e3),
    7: (1, 2, 6, 16, 44, 86.5, 126, 195, 342, 956, 1880, 5090, 16500, 44600, 77100, 126e3, 173e3, 173e3,
        173e3, 173e3, 173e3),
    8: (1, 2, 8, 26, 70, 123, 166, 216, 382, 745, 1150, 2460, 5950, 25900, 42300, 65600, 114e3, 165e3, 173e3,
        173e3, 173e3),
    32: (1, 2, 7, 16, 58, 93, 184, 305, 598, 1990, 5380, 13800, 32e3, 61200, 86e3, 129e3, 173e3, 173e3,
         173e3, 173e3, 173e3),
    10**9: (1, 4, 5, 5, 8, 26, 69, 131, 217, 356, 481, 748, 1390, 4130, 9180, 31200, 75100, 138e3, 173e3,
            173e3, 173e3),
}  # fmt: skip
"""By the largest demand of the class."""
GAPS_S = (
    0, 0, 0, 1, 7, 17, 29, 44, 67, 96, 116, 142, 181, 250, 308, 411, 585, 769, 1220, 2060, 16000,
)  # fmt: skip


def fit(jobs: Sequence[Job]) -> tuple[dict[int, float], dict[int, list[float]], list[float]]:
    """Shares of demands, quantiles of service by class of demand, quantiles of gaps: what the tables hold."""
    gpus = np.array([job.gpus for job in jobs])
    service_s = np.array([job.service_s for job in jobs])
    gaps_s = np.diff([job.arrival_s for job in jobs])
    demands = {int(g): float(np.mean(gpus == g)) for g in np.unique(gpus)}
    services: dict[int, list[float]] = {}
    lower = 0
    for upper in SERVICE_S:
        these = service_s[(gpus > lower) & (gpus <= upper)]
        services[upper] = np.quantile(these, QUANTILES).tolist()
        lower = upper
    return demands, services, np.quantile(gaps_s, QUANTILES).tolist()


def generate_jobs(count: int, rng: Generator, *, largest: int = 10**9) -> list[Job]:
    """Draw `count` jobs with arrivals, none larger than `largest` GPUs."""
    if count < 1:
        raise ConfigError(f"{count} jobs cannot be generated; ask for at least 1")
    demands = np.array([gpus for gpus in DEMANDS if gpus <= largest])
    if not len(demands):
        raise ConfigError(f"no demand of Helios fits {largest} GPUs; allow at least 1")
    shares = np.array([DEMANDS[int(gpus)] for gpus in demands])
    gpus = rng.choice(demands, size=count, p=shares / shares.sum())
    arrival_s = np.cumsum(np.expm1(_draw(np.log1p(GAPS_S), rng.random(count))))
    arrival_s -= arrival_s[0]
    position = rng.random(count)
    service_s = np.empty(count)
    lower = 0
    for upper, quantiles in SERVICE_S.items():
        these = (gpus > lower) & (gpus <= upper)
        service_s[these] = np.exp(_draw(np.log(quantiles), position[these]))
        lower = upper
    return [
        Job(id=f"g{i}", arrival_s=round(float(a), 3), gpus=int(g), service_s=round(float(s), 3))
        for i, (a, g, s) in enumerate(zip(arrival_s, gpus, service_s, strict=True))
    ]


def _draw(quantiles: NDArray[np.float64], position: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.interp(position, QUANTILES, quantiles))
