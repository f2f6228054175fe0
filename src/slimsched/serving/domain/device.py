"""A device, as its data sheet and its software stack describe it."""

from msgspec import Struct


class Device(Struct, frozen=True, kw_only=True):
    """Public figures of a device from which a profile can be modelled when none was measured.

    `efficiency` is the share of the peak that convolutions of this size reach; `launch_s` is what the
    software spends on each segment besides arithmetic, which concurrent instances can overlap.
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
