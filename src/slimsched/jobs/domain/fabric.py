"""The network of a training cluster: bandwidth inside a machine, out of a machine and out of a rack."""

from msgspec import Struct

from slimsched.kernel.errors import UnknownNameError
from slimsched.kernel.quantity import Factor, PartialShare, PositiveAmount, Seconds

GB = 1e9


class Fabric(Struct, frozen=True, kw_only=True):
    """Bandwidths in bytes per second and one-way direction, as a ring all-reduce sees them.

    `nic_bytes_per_s` is one network card; `rails` says whether every GPU has its own card.
    `uplink_bytes_per_s` is what one machine's worth of uplink offers: a rack of M machines has M of them.
    `background` is the share of every uplink that other traffic takes.
    `kappa` is how much slower a real ring is than the bandwidth alone says.
    """

    name: str
    machine_bytes_per_s: PositiveAmount = 300 * GB
    nic_bytes_per_s: PositiveAmount
    rails: bool = False
    uplink_bytes_per_s: PositiveAmount
    background: PartialShare = 0.0
    latency_s: Seconds = 5e-6
    kappa: Factor = 1.05

    def rack_uplink_bytes_per_s(self, machines: int) -> float:
        """Return what other traffic leaves of the uplink of a rack with `machines` machines."""
        return machines * self.uplink_bytes_per_s * (1.0 - self.background)


FABRICS = {
    fabric.name: fabric
    for fabric in (
        # 400 Gb/s per GPU and full bisection: crossing racks costs next to nothing
        Fabric(name="fast", nic_bytes_per_s=50 * GB, rails=True, uplink_bytes_per_s=400 * GB),
        # 100 Gb/s per machine, racks oversubscribed 4:1
        Fabric(name="oversubscribed", nic_bytes_per_s=12.5 * GB, uplink_bytes_per_s=3.125 * GB),
        # the same, with seven eighths of every uplink taken by other traffic
        Fabric(name="congested", nic_bytes_per_s=12.5 * GB, uplink_bytes_per_s=3.125 * GB, background=0.875),
    )
}


def fabric_named(name: str) -> Fabric:
    """Look a network setting up."""
    try:
        return FABRICS[name]
    except KeyError:
        raise UnknownNameError("network", name, tuple(FABRICS)) from None
