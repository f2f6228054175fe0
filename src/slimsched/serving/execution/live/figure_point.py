"""Points of Figures 1 to 3 of the paper, as stored in a file; reading them needs no PyTorch."""

from msgspec import Struct

from slimsched.kernel.quantity import Amount, Bytes, Count, Seconds


class FigurePoint(Struct, frozen=True, kw_only=True):
    """One setting and its figures; `load` is the share of the device's capacity, 0 in a closed loop."""

    plan: str
    batch: Count
    load: Amount
    utilization: Amount
    latency_mean_s: Seconds
    latency_p99_s: Seconds
    segment_s: tuple[Seconds, ...]  # mean time of a batch by segment
    segment_bytes: tuple[Bytes, ...]  # memory of each segment's instance
    images_per_s: Amount
    power_w: Amount


class DeviceFigures(Struct, frozen=True, kw_only=True):
    """Both sweeps with a description of the device."""

    device: dict[str, str]
    idle_w: Amount
    batch_sweep: list[FigurePoint]
    load_sweep: list[FigurePoint]
