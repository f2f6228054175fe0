"""The whole: gateway, servers, network and faults, driven by loads of all kinds."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster import path, widths_of
from slimsched.core.config import ConfigError
from slimsched.core.log import Log, LogWriter, replay
from slimsched.serving.domain.cluster import Fault
from slimsched.serving.gateway.bounds import capacity_per_s, fluid_optimum
from slimsched.serving.gateway.messages import SendBlock, TelemetryReceived
from slimsched.serving.routers.registry import ROUTERS
from slimsched.serving.scenario.files import RunSetting, choose_scenario, load_scenario
from slimsched.serving.scenario.replay import machines_for, machines_of
from slimsched.serving.scenario.scenario import Scenario
from slimsched.serving.scheduler.scheduler import RunBatch
from slimsched.serving.simulated.run import simulate

PAPER = load_scenario("paper", accuracy="paper")


def logged(at: Path, scenario: Scenario, router: str, seed: int) -> Path:
    raw = {**choose_scenario("paper").raw, "accuracy": "paper"}
    header = RunSetting(scenario=raw, router=router, seed=seed).header()
    with LogWriter(at, header) as log:
        simulate(scenario, router, seed=seed, observers=[log])
    return at


class Sends:
    """An observer that keeps what the gateway sent."""

    def __init__(self) -> None:
        self.all: list[SendBlock] = []

    def observe(self, now_s: float, machine: str, event: object, commands: list[object]) -> None:
        self.all += [command for command in commands if isinstance(command, SendBlock)]


FAULTS = (
    Fault(server="server-0", at_s=0.2, kind="kill"),
    Fault(server="server-1", at_s=0.3, kind="slow", slowdown=3.0),
    Fault(server="server-0", at_s=0.9, kind="restore"),
)


@pytest.mark.parametrize("router", ROUTERS)
def test_every_request_is_answered_once_though_a_server_dies_and_returns(router: str) -> None:
    scenario = PAPER.with_load(rate_per_s=1500.0, seconds=1.5).with_faults(FAULTS)
    row = simulate(scenario, router, drain=True).summary
    assert row.completed == row.arrived > 2000
    assert (row.lost, row.duplicates, row.dropped, row.unfinished) == (0, 0, 0, 0)


def test_a_hung_server_costs_no_request_but_those_it_had_take_longer() -> None:
    def latency_p99_s(kind: str) -> float:
        faults = (
            Fault(server="server-0", at_s=0.2, kind=kind),  # type: ignore[arg-type]
            Fault(server="server-0", at_s=0.5, kind="restore"),
        )
        row = simulate(PAPER.with_load(rate_per_s=300.0, seconds=1.5).with_faults(faults), "sed", drain=True)
        assert row.summary.completed == row.summary.arrived > 300
        assert (row.summary.lost, row.summary.duplicates, row.summary.unfinished) == (0, 0, 0)
        return row.summary.latency_p99_s

    assert latency_p99_s("hang") > latency_p99_s("kill") + 0.5


def test_a_stated_width_runs_through_on_one_server_and_survives_its_death() -> None:
    scenario = PAPER.with_load(rate_per_s=1500.0, seconds=1.5).with_faults(FAULTS)
    stated = replace(scenario, load=replace(scenario.load, plan="0.5"))
    sends = Sends()
    row = simulate(stated, "jsq", drain=True, observers=[sends]).summary  # type: ignore[list-item]
    assert row.completed == row.arrived > 2000
    assert (row.lost, row.duplicates, row.dropped, row.unfinished) == (0, 0, 0, 0)
    half = path(0.5, 0.5, 0.5, 0.5)
    assert row.accuracy_prior == pytest.approx(PAPER.cluster.models[0].quality.accuracy(half))
    assert {send.block.key.last_segment for send in sends.all} == {3}, "always to the end"
    assert {send.block.key.choices for send in sends.all} <= {half[:length] for length in range(1, 5)}


def test_the_same_seed_gives_the_same_log_byte_for_byte(tmp_path: Path) -> None:
    scenario = PAPER.with_load(rate_per_s=3000.0, seconds=0.5).with_faults(FAULTS[:2])
    one, two = (logged(tmp_path / f"{n}.jsonl.gz", scenario, "power-of-two", 5).read_bytes() for n in (1, 2))
    other = logged(tmp_path / "3.jsonl.gz", scenario, "power-of-two", 6).read_bytes()
    assert one == two != other


@pytest.mark.parametrize("router", ROUTERS)
def test_a_log_replayed_into_fresh_machines_gives_the_same_commands(router: str, tmp_path: Path) -> None:
    scenario = PAPER.with_load(rate_per_s=2000.0, seconds=1.2).with_faults(FAULTS)
    log = Log(logged(tmp_path / "run.jsonl", scenario, router, 1))
    compared = replay(log.entries(), machines_of(log.header))
    assert log.ending is not None
    assert log.ending.entries == compared.entries
    assert compared.difference is None
    assert compared.machines == 5, "gateway, three servers, and the second life of one"
    assert compared.entries > 1000


def test_a_log_from_before_requests_had_counts_replays_too(tmp_path: Path) -> None:
    path = logged(tmp_path / "run.jsonl", PAPER.with_load(seconds=0.2), "sed", 1)
    with_counts = path.read_text()
    path.write_text(with_counts.replace(",null,1]", ",null]"))
    assert len(path.read_text()) < len(with_counts)
    log = Log(path)
    compared = replay(log.entries(), machines_of(log.header))
    assert compared.entries > 100
    assert compared.difference is None


def test_replay_shows_the_first_difference(tmp_path: Path) -> None:
    log = Log(logged(tmp_path / "run.jsonl", PAPER.with_load(seconds=0.2), "random", 1))
    compared = replay(log.entries(), machines_for(PAPER, "random", 2))  # another seed: other dice
    assert compared.difference is not None
    assert compared.difference.machine == "gateway"
    assert compared.difference.logged != compared.difference.replayed


def test_segments_of_one_request_may_run_on_different_servers_and_activations_cross_the_network() -> None:
    quiet, sends = PAPER.with_load(rate_per_s=50.0, seconds=2.0), Sends()
    far = [replace(link, latency_s=link.latency_s + 0.1) for link in quiet.cluster.links]
    near = simulate(quiet, "random", observers=[sends], drain=True).summary
    moves = [send for send in sends.all if send.source not in (-1, send.server)]
    away = replace(quiet, cluster=dataclasses.replace(quiet.cluster, links=far))
    late = simulate(away, "random", drain=True).summary
    assert 0.5 * near.completed < len(moves) < 3 * near.completed, "two of three segments move, at random"
    assert late.latency_mean_s > near.latency_mean_s + 0.2 * len(moves) / near.completed


def test_no_router_beats_the_fluid_bound() -> None:
    rate = 1.3 * capacity_per_s(PAPER.cluster, path(1.0, 1.0, 1.0, 1.0))
    scenario = PAPER.with_load(rate_per_s=rate, seconds=3.0)
    bound = fluid_optimum(PAPER.cluster, rate).accuracy
    for router in ("sed", "drift-plus-penalty", "lp"):
        row = simulate(scenario, router, drain=True).summary
        assert row.accuracy_prior <= 1.002 * bound
        assert row.bound_share <= 1.002


class Ages:
    """An observer that remembers how old telemetry is when the gateway hears of it."""

    def __init__(self) -> None:
        self.all_s: list[float] = []

    def observe(self, now_s: float, machine: str, event: object, commands: list[object]) -> None:
        if isinstance(event, TelemetryReceived):
            self.all_s.append(now_s - event.snapshot.taken_s)


def test_older_telemetry_reaches_the_gateway_later() -> None:
    def ages(delay_s: float) -> Ages:
        seen, load = Ages(), PAPER.with_load(rate_per_s=50.0, seconds=2.0)
        scenario = replace(load, telemetry=replace(PAPER.telemetry, delay_s=delay_s))
        simulate(scenario, "sed", observers=[seen])  # type: ignore[list-item]
        return seen

    fresh, old = ages(0.0).all_s, ages(1.0).all_s
    assert 0.0 <= max(fresh) < 0.1
    assert min(old) > 0.999
    assert len(fresh) > len(old) > 0


def test_a_fault_of_an_unknown_server_is_refused() -> None:
    with pytest.raises(ConfigError, match="scenario 'paper' has no server 'server-9'; it has server-0"):
        PAPER.with_faults((Fault(server="server-9", at_s=1.0, kind="kill"),))


class Widths:
    """An observer that remembers which widths ran."""

    def __init__(self) -> None:
        self.seen: set[float] = set()

    def observe(self, now_s: float, machine: str, event: object, commands: list[object]) -> None:
        ran = [command.batch.key for command in commands if isinstance(command, RunBatch)]
        self.seen |= {width for key in ran for width in widths_of(key.choices)}


def test_observers_see_everything_and_change_nothing() -> None:
    widths = Widths()
    scenario = PAPER.with_load(rate_per_s=500.0, seconds=0.5)
    watched = simulate(scenario, "random", observers=[widths]).summary  # type: ignore[list-item]
    alone = simulate(scenario, "random").summary
    assert widths.seen == {0.25, 0.5, 0.75, 1.0}
    assert watched.latency_mean_s == alone.latency_mean_s


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(PAPER.cluster.names),
            st.floats(0.0, 0.6),
            st.sampled_from(["kill", "hang", "restore"]),
        ),
        max_size=6,
    ),
    st.sampled_from(["random", "sed", "lp"]),
    st.integers(0, 5),
)
def test_whatever_fails_and_returns_no_request_is_lost_or_answered_twice(
    faults: list[tuple[str, float, str]], router: str, seed: int
) -> None:
    timeline = [Fault(server=s, at_s=at, kind=kind) for s, at, kind in faults]  # type: ignore[arg-type]
    timeline += [Fault(server=name, at_s=2.5, kind="restore") for name in PAPER.cluster.names]
    scenario = PAPER.with_load(rate_per_s=600.0, seconds=0.6).with_faults(tuple(timeline))
    row = simulate(scenario, router, seed=seed, drain=True).summary
    assert row.completed == row.arrived
    assert (row.lost, row.duplicates) == (0, 0)


@pytest.mark.slow
def test_random_routing_behaves_as_the_papers_table_iii() -> None:
    row = simulate(PAPER, "random").summary
    assert row.arrived == pytest.approx(420_538, rel=0.01)
    assert row.completed == pytest.approx(250_906, rel=0.05)
    assert row.latency_mean_s == pytest.approx(8.979, rel=0.1)
    assert row.latency_sd_s == pytest.approx(7.302, rel=0.15)
