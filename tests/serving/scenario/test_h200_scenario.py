"""The measured scenario `h200`: three shares of one GPU."""

from cluster import MODEL, key
from slimsched.serving.scenario.files import CONFIGS, load_scenario, read_profile
from slimsched.serving.simulated.run import simulate


def test_a_smaller_share_of_the_gpu_is_slower_where_it_matters() -> None:
    records = [read_profile(CONFIGS / "profiles" / f"h200-{share}.json") for share in (100, 50, 25)]
    shares = [record.profile(MODEL) for record in records]
    times = [profile.latency_s(key(0, 1.0), 256) for profile in shares]
    assert times == sorted(times)
    assert times[2] > 2 * times[0]
    for profile in shares:
        assert profile.element_bytes == 2


def test_the_measured_scenario_simulates() -> None:
    scenario = load_scenario("h200").with_load(rate_per_s=500.0, seconds=0.5)
    assert [host.mps_percentage for host in scenario.hosts if host is not None] == [100, 50, 25]
    row = simulate(scenario, "sed", drain=True).summary
    assert row.completed == row.arrived > 100
