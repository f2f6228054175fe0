"""The extra cost of a batch in service, beyond its profile, which was measured on an idle device."""

from msgspec import Struct

from slimsched.kernel.quantity import Factor, Seconds

PACE_S = 0.1
"""How long each entry of `pace` lasts."""


class ServiceCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch in service takes pace × (overhead_s + slowdown × the profile's time).

    `overhead_s` is the server's own work per batch. `slowdown` comes from sharing a core and from cold
    caches. A machine also has slow periods, longer than a batch, that cause latency tails: `pace` is how much
    longer than usual batches took, one entry per tenth of a second, repeated. `slim validate` measures all
    three.
    """

    slowdown: Factor = 1.0  # factor on the profile's time
    overhead_s: Seconds = 0.0  # the server's own work per batch
    pace: tuple[Factor, ...] = ()  # how much longer batches take, by tenths of a second

    def latency_s(self, alone_s: float, now_s: float) -> float:
        """Return the time of a batch that begins now and takes `alone_s` by its profile."""
        usual_s = self.overhead_s + self.slowdown * alone_s
        return usual_s * self.pace[int(now_s / PACE_S) % len(self.pace)] if self.pace else usual_s


ALONE = ServiceCost()
