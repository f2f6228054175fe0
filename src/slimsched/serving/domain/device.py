"""A device, described by its data sheet and its software."""

from msgspec import Struct

from slimsched.kernel.errors import ConfigError
from slimsched.kernel.quantity import (
    Amount,
    Bytes,
    Count,
    Name,
    PositiveAmount,
    PositiveSeconds,
    PositiveShare,
    Seconds,
)


class Device(Struct, frozen=True, kw_only=True):
    """Public figures of a device, from which a profile is modelled when none was measured.

    `efficiency` is the share of the peak that convolutions of this size reach. `launch_s` is the time that
    the software spends on each segment besides arithmetic; concurrent instances can overlap it.
    """

    name: Name
    source: str
    peak_flop_per_s: PositiveAmount
    memory_bytes_per_s: PositiveAmount
    memory_bytes: Bytes
    idle_w: Amount
    peak_w: Amount
    launch_s: PositiveSeconds
    efficiency: PositiveShare = 0.5
    load_bytes_per_s: PositiveAmount = 6e9
    load_fixed_s: Seconds = 0.002
    element_bytes: Count = 4

    def __post_init__(self) -> None:
        if self.idle_w > self.peak_w:
            power = f"idle_w is {self.idle_w:g} and peak_w {self.peak_w:g}"
            raise ConfigError(f"device '{self.name}': {power}; give 0 ≤ idle_w ≤ peak_w")
