"""Small clusters and values that many tests use."""

from slimsched.models.slimresnet.shape import SLIM_RESNET
from slimsched.models.slimresnet.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.block import Block, block_of
from slimsched.serving.domain.cluster import Cluster
from slimsched.serving.domain.device import Device
from slimsched.serving.domain.key import KEYS, onward
from slimsched.serving.domain.link import Link
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.request import Request
from slimsched.serving.domain.roofline import modelled_profile
from slimsched.serving.execution.scenario_file import load_accuracy

MEGABYTE = 1_000_000


def flat_profile(*, latency_s: float = 0.01, instance_bytes: int = MEGABYTE, name: str = "flat") -> Profile:
    """Every batch takes the same time, every instance the same memory."""
    keys = KEYS.values()
    places = [(segment, width) for segment in range(SEGMENTS) for width in WIDTHS]
    return Profile(
        name=name,
        source="made for a test",
        batches=[1, 16],
        concurrency=[1, 2],
        latency_s={key: [[latency_s, latency_s], [latency_s, latency_s]] for key in keys},
        energy_j={key: [1.0, 1.0] for key in keys},
        instance_bytes=dict.fromkeys(places, instance_bytes),
        load_s=dict.fromkeys(places, 0.001),
        idle_w=10.0,
        element_bytes=2,
    )


def device(name: str, tflops: float) -> Device:
    return Device(
        name=name,
        source="made for a test",
        peak_flop_per_s=tflops * 1e12,
        memory_bytes_per_s=400e9,
        memory_bytes=8 * 2**30,
        idle_w=20.0,
        peak_w=200.0,
        launch_s=0.0005,
    )


def small_cluster(speeds: tuple[float, ...] = (10.0, 10.0, 3.0), batch_limit: int = 8) -> Cluster:
    profiles = {speed: modelled_profile(device(f"gpu-{speed:g}", speed), SLIM_RESNET) for speed in speeds}
    link = Link(bandwidth_bytes_per_s=500e6, latency_s=0.0005)
    return Cluster(
        names=[f"server-{number}" for number in range(len(speeds))],
        profiles=[profiles[speed] for speed in speeds],
        network=SLIM_RESNET,
        accuracy=load_accuracy("paper"),
        links=[link] * len(speeds),
        gateway_link=link,
        batch_limit=batch_limit,
    )


def requests(
    count: int, *, first: int = 0, widths: tuple[float, ...] = (), **asked: float
) -> tuple[Request, ...]:
    return tuple(
        Request(id=first + number, arrival_s=0.0, widths=widths, **asked)  # type: ignore[arg-type]
        for number in range(count)
    )


def block(
    number: int,
    count: int,
    *,
    segment: int = 0,
    width: float = 0.5,
    previous: float | None = None,
    ahead: tuple[float, ...] = (),
    **asked: float,
) -> Block:
    """A block of `count` requests whose ids begin at 100 × its number."""
    widths = () if previous is None else (previous,) * segment
    members = requests(count, first=100 * number, widths=widths, **asked)
    return block_of(number, onward(KEYS[segment, width, previous], ahead), members)
