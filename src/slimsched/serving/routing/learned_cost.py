"""The learned cost of batches: what a server's batches take in service, beside what its profile says.

    busy = overhead_s + slowdown · profiled

Both are fitted to the batches that a server has finished, by least squares of relative errors that forget. A
profile is measured on an idle core with one key at a time; in service a batch also pays for messages, cold
caches and neighbours. A batch that took far longer than expected counts only as far as `MOST` says, because a
pause of the machine says little about the next batch. Where batches are too much alike to tell the two apart,
all of it counts as slowdown.

The overhead is paid once per batch. So what it adds to an example depends on how many share the batch, which
is measured too: apart for first plans, and for plans that go on after an answer, whose batches are smaller.
"""

from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.routing.events import SegmentFinished
from slimsched.serving.routing.observation import Observation

KEPT = 0.99
"""What a batch still counts after the next one: about the last hundred batches decide."""

PRIOR = 20.0
"""How many batches that take as long as profiled are assumed at the start."""

SAME = 0.1
"""Batches whose profiled times differ by less than about this share do not show the overhead."""

MOST = 2.0
"""How many times slower than expected a batch counts at most."""

LEAST_SLOWDOWN = 0.5
"""No more of a batch's time than leaves this factor on its profile counts as overhead."""

FIRST_BATCH = 8.0
"""How many examples a batch is assumed to have before any has run."""


class _Sizes:
    """The mean number of examples in a batch; older batches fade."""

    def __init__(self) -> None:
        self._batches, self._examples = 1.0, FIRST_BATCH

    @property
    def mean(self) -> float:
        return self._examples / self._batches

    def note(self, examples: int) -> None:
        self._batches = KEPT * self._batches + 1.0
        self._examples = KEPT * self._examples + examples


class LearnedCost:
    """The cost of one server's batches.

    With u = 1 / profiled and r = busy / profiled, the equation is r = slowdown + overhead · u: a line.
    """

    def __init__(self) -> None:
        self.overhead_s = 0.0
        """Time that every batch takes, whatever it has to do."""
        self.slowdown = 1.0
        """Factor on the profiled time."""
        self._first, self._further = _Sizes(), _Sizes()
        self._weight = self._u = self._r = self._uu = self._ur = 0.0

    def note(self, profiled_s: float, busy_s: float, examples: int, *, further: bool) -> None:
        """Note a batch that took `busy_s`, and whether its examples had an answer before."""
        (self._further if further else self._first).note(examples)
        if profiled_s <= 0.0 or busy_s <= 0.0:
            return
        u = 1.0 / profiled_s
        r = min(busy_s * u, MOST * (self.slowdown + self.overhead_s * u))
        if not self._weight:
            self._weight, self._u, self._r = PRIOR, PRIOR * u, PRIOR
            self._uu, self._ur = PRIOR * u * u, PRIOR * u
        self._weight = KEPT * self._weight + 1.0
        self._u = KEPT * self._u + u
        self._r = KEPT * self._r + r
        self._uu = KEPT * self._uu + u * u
        self._ur = KEPT * self._ur + u * r
        self._fit()

    @property
    def first_s(self) -> float:
        """What the overhead adds to each example of a first plan."""
        return self.overhead_s / self._first.mean

    @property
    def further_s(self) -> float:
        """What the overhead adds to each example of a plan that goes on after an answer."""
        return self.overhead_s / self._further.mean

    def _fit(self) -> None:
        """Fit the line; as long as all batches are alike, it is level."""
        u, r = self._u / self._weight, self._r / self._weight
        spread = max(0.0, self._uu / self._weight - u * u) + (SAME * u) ** 2
        slope = (self._ur / self._weight - u * r) / spread
        self.overhead_s = min(max(0.0, slope), max(0.0, r - LEAST_SLOWDOWN) / u)
        self.slowdown = r - self.overhead_s * u


class ServiceCosts:
    """Learns the costs of all servers, and tells routers what they add (`Observation`).

    Nothing is learned of servers whose batches share the device: how long a batch takes there depends on its
    neighbours, and the profile knows about them.
    """

    def __init__(self, cluster: Cluster, seen: Observation) -> None:
        self._seen = seen
        self.servers = [LearnedCost() if p.top_concurrency == 1 else None for p in cluster.profiles]

    def ran(self, event: SegmentFinished, cluster: Cluster) -> None:
        """Learn from a finished batch."""
        server, cost = event.server, self.servers[event.server]
        if cost is None or not event.size:
            return
        trail = event.blocks[0].requests[0].trail
        profiled_s = cluster.profiles[server].latency_s(event.key, event.size)
        cost.note(profiled_s, event.busy_s, event.size, further=trail is not None and bool(trail.tried))
        self._seen.slowdown[server] = cost.slowdown
        self._seen.first_extra_s[server] = cost.first_s
        self._seen.further_extra_s[server] = cost.further_s
