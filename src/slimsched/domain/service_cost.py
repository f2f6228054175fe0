"""What a batch costs in service beyond its profile, which was measured with the device to itself."""

from msgspec import Struct


class ServiceCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch in service takes overhead_s + slowdown × (the profile's time).

    The overhead is the server's own work on each batch; the slowdown what it shares its core with and how
    cold its caches are. `slim validate` measures both.
    """

    slowdown: float = 1.0
    overhead_s: float = 0.0


ALONE = ServiceCost()
