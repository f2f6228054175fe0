import pytest

from cluster import MODEL, choice, device, flat_profile, key
from slimsched.core.config import DataError
from slimsched.serving.domain.profile import Profile, modelled_profile

KEY, KEYS = key(1, 0.5, 0.25), MODEL.keys.values()


def sloped(**changes: object) -> Profile:
    flat = flat_profile()
    values: dict[str, object] = {
        "name": "sloped",
        "source": "test",
        "batches": [1, 5],
        "concurrency": [1, 3],
        "latency_table_s": {one: [[1.0, 3.0], [2.0, 6.0]] for one in KEYS},
        "energy_table_j": {one: [1.0, 3.0] for one in KEYS},
        "instance_bytes": flat.instance_bytes,
        "load_s": flat.load_s,
        "idle_w": 1.0,
        "element_bytes": 2,
    }
    return Profile(**{**values, **changes})  # type: ignore[arg-type]


def test_between_measured_sizes_latency_is_interpolated_and_beyond_them_it_grows_in_proportion() -> None:
    profile = sloped()
    assert profile.latency_s(KEY, 1) == 1.0
    assert profile.latency_s(KEY, 3) == 2.0
    assert profile.latency_s(KEY, 10) == 6.0
    assert profile.latency_s(KEY, 1, 2) == 1.5
    assert profile.latency_s(KEY, 5, 6) == 12.0
    assert profile.energy_j(KEY, 3) == 2.0


def test_work_is_the_best_throughput_over_batch_and_concurrency() -> None:
    assert sloped().work_s(KEY, 5) == pytest.approx(6.0 / 15)
    assert sloped().work_s(KEY, 1) == pytest.approx(2.0 / 3)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batches": [2, 5]}, "batches must rise from 1"),
        ({"concurrency": [1, 1]}, "concurrency must rise from 1"),
        ({"latency_table_s": {}}, "latency_s and energy_j must name the same keys"),
        ({"latency_table_s": {one: [[1.0, 1.0]] for one in KEYS}}, "needs 2 × 2 latencies"),
        ({"latency_table_s": {one: [[0.0, 1.0], [1.0, 1.0]] for one in KEYS}}, "not above 0"),
        ({"energy_table_j": {one: [-1.0, 1.0] for one in KEYS}}, "none below 0"),
        ({"idle_w": -5.0}, "idle_w is -5"),
    ],
)
def test_an_impossible_profile_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        sloped(**changes)


def test_a_modelled_profile_is_faster_when_narrower_and_on_a_faster_device() -> None:
    slow, fast = (modelled_profile(device("d", tflops), MODEL) for tflops in (2.0, 10.0))
    for segment in range(4):
        narrow, wide = (key(segment, width, 1.0 if segment else None) for width in (0.25, 1.0))
        assert slow.latency_s(narrow, 16) < slow.latency_s(wide, 16)
        assert fast.latency_s(wide, 16) < slow.latency_s(wide, 16)
        assert fast.instance_bytes[0, segment, choice(0.25)] < fast.instance_bytes[0, segment, choice(1.0)]
