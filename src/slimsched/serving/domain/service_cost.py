"""What a batch costs in service beyond its profile, which was measured with the device to itself."""

from msgspec import Struct

PACE_S = 0.1
"""How long each entry of a pace holds."""


class ServiceCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch in service takes pace × (overhead_s + slowdown × the profile's time).

    The overhead is the server's own work on each batch; the slowdown what it shares its core with and how
    cold its caches are. A machine has slow spells, longer than a batch, that make tails: `pace` is how much
    longer than usual batches took, every tenth of a second, over and over. `slim validate` measures all.
    """

    slowdown: float = 1.0
    overhead_s: float = 0.0
    pace: tuple[float, ...] = ()

    def latency_s(self, alone_s: float, now_s: float) -> float:
        """Time of a batch that begins now and would take `alone_s` by its profile."""
        usual_s = self.overhead_s + self.slowdown * alone_s
        return usual_s * self.pace[int(now_s / PACE_S) % len(self.pace)] if self.pace else usual_s


ALONE = ServiceCost()
