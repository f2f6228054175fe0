"""A profile modelled from public figures of a device, by the roofline model."""

from slimsched.serving.domain.device import Device
from slimsched.serving.domain.key import Key
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.served_model import ServedModel

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
CONCURRENCY = (1, 2, 4, 8)


def modelled_profile(device: Device, model: ServedModel) -> Profile:
    """Model a profile: t(b, c) = launch + c · b · max(flop / rate, bytes / bandwidth).

    Concurrent instances overlap their launches and share the arithmetic. Power rises from idle to peak
    with the share of time that the arithmetic units are busy.
    """
    busy_s = {key: _busy_s(device, model, key) for key in model.keys.values()}
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
    figures = model.figures
    memory = {  # weights and the workspace of the largest batch
        (model.number, *place): device.element_bytes
        * (figures.weights[place] + 4 * BATCHES[-1] * figures.workspace[place])
        for place in model.spec.places()
    }
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


def _busy_s(device: Device, model: ServedModel, key: Key) -> float:
    """Return the time per example on the arithmetic units or the memory bus, whichever is longer."""
    step = model.figures.steps[key.step]
    return max(
        2 * step.macs / (device.efficiency * device.peak_flop_per_s),
        step.moved * device.element_bytes / device.memory_bytes_per_s,
    )
