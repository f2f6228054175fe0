"""A load: how many requests arrive, when, and what they ask for."""

from pathlib import Path

import numpy as np
from msgspec import Struct

from slimsched.kernel.errors import ConfigError
from slimsched.models.width import check_width
from slimsched.serving.domain.request import NEVER_S
from slimsched.serving.workload.arrivals import arrivals, check_load
from slimsched.serving.workload.request_trace import read_request_trace
from slimsched.serving.workload.requests import RequestStream


class Load(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a load; `arrivals` names a process (`ARRIVALS` lists them) or is a path of a trace."""

    rate_per_s: float
    seconds: float
    warmup_s: float = 0.0  # the start of a run that its figures leave out
    arrivals: str = "poisson"
    shape: dict[str, float] = {}
    deadline_s: float = NEVER_S
    min_accuracy: float = 0.0
    width: float = 0.0  # what every request asks for; 0 lets the router choose
    urgent_share: float = 0.0  # share of requests with priority 1; the others have 0
    cancel_share: float = 0.0  # share of requests whose sender hangs up if they are not answered by then
    cancel_after_s: float = 0.1  # how long after arrival that is

    def check(self) -> None:
        """Refuse settings that make no sense, before a run starts."""
        if self.width:
            check_width(self.width)
        check_load(self.rate_per_s, self.seconds)
        if not 0.0 <= self.cancel_share <= 1.0 or self.cancel_after_s <= 0.0:
            raise ConfigError(
                f"cancel_share is {self.cancel_share:g} and cancel_after_s {self.cancel_after_s:g}; "
                "give a share from 0 to 1 and a time above 0"
            )
        if not 0.0 <= self.warmup_s < self.seconds:
            raise ConfigError(
                f"warmup_s is {self.warmup_s:g} in a run of {self.seconds:g} s; leave time to measure"
            )

    def stream(self, seed: int, images: int) -> RequestStream:
        """Draw the requests. Their images are drawn uniformly from a test set of this many images."""
        rng = np.random.default_rng(seed)
        if "/" in self.arrivals or "." in self.arrivals:
            times_s = read_request_trace(Path(self.arrivals)).rescaled(self.rate_per_s, self.seconds, rng)
        else:
            times_s = arrivals(self.arrivals, self.rate_per_s, self.seconds, rng, **self.shape)
        image = rng.integers(max(1, images), size=len(times_s)) if images else np.full(len(times_s), -1)
        urgent = rng.uniform(size=len(times_s)) < self.urgent_share
        return RequestStream(
            times_s,
            images=image,
            deadline_s=self.deadline_s,
            min_accuracy=self.min_accuracy,
            width=self.width,
            priorities=urgent.astype(np.int64) if self.urgent_share > 0 else None,
            impatient=rng.uniform(size=len(times_s)) < self.cancel_share if self.cancel_share > 0 else None,
            cancel_after_s=self.cancel_after_s,
        )
