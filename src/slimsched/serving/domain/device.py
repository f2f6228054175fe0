"""A device, described by its data sheet and its software."""

from msgspec import Struct


class Device(Struct, frozen=True, kw_only=True):
    """Public figures of a device, from which a profile is modelled when none was measured.

    `efficiency` is the share of the peak that convolutions of this size reach. `launch_s` is the time that
    the software spends on each segment besides arithmetic; concurrent instances can overlap it.
    """

    name: str
    source: str
    peak_flop_per_s: float
    memory_bytes_per_s: float
    memory_bytes: int
    idle_w: float
    peak_w: float
    launch_s: float
    efficiency: float = 0.5
    load_bytes_per_s: float = 6e9
    load_fixed_s: float = 0.002
    element_bytes: int = 4
