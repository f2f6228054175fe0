"""A Markov-modulated Poisson process: arrivals whose rate jumps between a few states."""

from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.random import Generator
from numpy.typing import NDArray

from slimsched.kernel.quantity import Amount, PositiveSeconds, Rate, Share

SHIPPED = Path(__file__).parent / "azure_llm_2023_conv.json"
"""A process fitted to one hour of requests to a conversation service; the file names the command."""


class ModulatedPoisson(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process with several states, each with its own arrival rate.

    For each state: `rates` is its rate relative to the mean, `lasts_s` how long it lasts on average, and
    `jumps` the probability of each next state (rows sum to 1). Times come from the trace it was fitted to,
    whose mean rate is `rate_per_s`. At another rate, time runs faster or slower in proportion, as when a real
    trace is rescaled.
    """

    source: str
    command: str
    rate_per_s: Rate
    rates: tuple[Amount, ...]
    lasts_s: tuple[PositiveSeconds, ...]
    jumps: tuple[tuple[Share, ...], ...]

    def share_of_time(self) -> NDArray[np.float64]:
        """Return the share of time spent in each state in the long run."""
        count = len(self.rates)
        flow = np.array(self.jumps) / np.array(self.lasts_s)[:, None]
        flow -= np.diag(1.0 / np.array(self.lasts_s))
        system = np.vstack([flow.T, np.ones(count)])
        shares: NDArray[np.float64] = np.linalg.lstsq(system, np.append(np.zeros(count), 1.0), rcond=None)[0]
        return shares

    def times_s(self, rate_per_s: float, seconds: float, rng: Generator) -> NDArray[np.float64]:
        """Draw arrivals with this mean rate."""
        pace = self.rate_per_s / rate_per_s
        state = int(rng.choice(len(self.rates), p=self.share_of_time()))
        pieces, now_s = [np.empty(0)], 0.0
        while now_s < seconds:
            length_s = min(rng.exponential(pace * self.lasts_s[state]), seconds - now_s)
            count = rng.poisson(rate_per_s * self.rates[state] * length_s)
            pieces.append(now_s + np.sort(rng.uniform(0.0, length_s, count)))
            now_s += length_s
            state = int(rng.choice(len(self.rates), p=self.jumps[state]))
        return np.concatenate(pieces)


@cache
def shipped_process() -> ModulatedPoisson:
    """Return the process that ships with the package."""
    return msgspec.json.decode(SHIPPED.read_bytes(), type=ModulatedPoisson)
