"""A modelled profile: what public figures of a device let us expect."""

from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.device import Device
from slimsched.serving.domain.key import KEYS, Key
from slimsched.serving.domain.profile import Profile

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CONCURRENCY = (1, 2, 4, 8)


def modelled_profile(device: Device, network: NetworkShape) -> Profile:
    """Launch overhead plus the roofline: t(b, c) = launch + c · b · max(flop / rate, bytes / bandwidth).

    Concurrent instances overlap their launches and share the arithmetic. Power rises from idle to peak
    with the share of time the arithmetic units are busy.
    """
    busy_s = {key: _busy_s(device, network, key) for key in KEYS.values()}
    latency_s = {
        key: [[device.launch_s + c * b * busy for b in BATCHES] for c in CONCURRENCY]
        for key, busy in busy_s.items()
    }
    energy_j = {
        key: [
            (device.peak_w - device.idle_w) * b * busy
            + 0.1 * (device.peak_w - device.idle_w) * device.launch_s
            for b in BATCHES
        ]
        for key, busy in busy_s.items()
    }
    memory = {(s, w): _instance_bytes(device, network, s, w) for s in range(SEGMENTS) for w in WIDTHS}
    return Profile(
        name=device.name,
        source=f"modelled from public figures: {device.source}",
        batches=BATCHES,
        concurrency=CONCURRENCY,
        latency_s=latency_s,
        energy_j=energy_j,
        instance_bytes=memory,
        load_s={at: device.load_fixed_s + size / device.load_bytes_per_s for at, size in memory.items()},
        idle_w=device.idle_w,
        element_bytes=device.element_bytes,
    )


def _busy_s(device: Device, network: NetworkShape, key: Key) -> float:
    """Time of one image on the arithmetic units or the memory bus, whichever is longer."""
    flop = 2 * network.macs(key.segment, key.previous, key.width)
    passes = 6 * network.blocks[key.segment]  # each convolution and normalization reads and writes once
    moved = passes * network.channels_at(key.segment, key.width) * network.side(key.segment) ** 2
    return max(
        flop / (device.efficiency * device.peak_flop_per_s),
        moved * device.element_bytes / device.memory_bytes_per_s,
    )


def _instance_bytes(device: Device, network: NetworkShape, segment: int, width: float) -> int:
    """Weights and the workspace of the largest batch."""
    workspace = 4 * BATCHES[-1] * network.channels_at(segment, width) * network.side(segment) ** 2
    return device.element_bytes * (network.parameters(segment, width) + workspace)
