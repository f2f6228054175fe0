"""The frames of the dashboard, compared with the run they show."""

from msgspec.structs import replace

from slimsched.serving.domain.cluster import GATEWAY_NAME, Fault, ServerSnapshot
from slimsched.serving.domain.model import ModelOutline
from slimsched.serving.domain.request import DropReason, Request
from slimsched.serving.gateway.bounds import BoundCurve, fluid_optimum
from slimsched.serving.gateway.gateway import Gateway
from slimsched.serving.gateway.goal import parse_goal
from slimsched.serving.gateway.messages import (
    Answer,
    Drop,
    GoalChanged,
    RequestsArrived,
    RequestsRefused,
    ServerDown,
    ServerGivenUp,
    ServerUp,
    TelemetryReceived,
    WakeAt,
)
from slimsched.serving.gateway.observation import Router
from slimsched.serving.routers.registry import make_router
from slimsched.serving.scenario.files import load_scenario
from slimsched.serving.simulated.run import simulate
from slimsched.serving.telemetry.live_view import FRAMES, Frame, LiveView, Stages
from slimsched.serving.telemetry.meter import Trace

KILL = Fault(server="server-0", at_s=0.4, kind="kill")
RESTORE = Fault(server="server-0", at_s=1.2, kind="restore")


def recorded(rate_per_s: float = 3000.0) -> tuple[Trace, list[Frame]]:
    scenario = load_scenario("paper").with_load(rate_per_s=rate_per_s, seconds=2.0)
    scenario = scenario.with_faults((KILL, RESTORE))
    trace = simulate(scenario, "sed", seed=1, record=True)
    return trace, list(trace.frames)


def view_of(name: str, router: Router | None = None) -> LiveView:
    scenario = load_scenario(name)
    router = router or make_router("sed", scenario.cluster, 0)
    return LiveView(Gateway(scenario.cluster, router, scenario.gateway), "sed")


def test_every_request_is_somewhere_exactly_once() -> None:
    _, frames = recorded()
    for frame in frames:
        somewhere = sum(frame.waiting) + sum(sum(server.at) for server in frame.servers)
        assert somewhere == frame.arrived - frame.answered - frame.dropped
        assert min(frame.waiting) >= 0
        assert all(min(server.at) >= 0 for server in frame.servers)


def test_totals_grow_to_the_totals_of_the_run() -> None:
    trace, frames = recorded()
    assert len(frames) in (FRAMES - 1, FRAMES)
    assert frames[-1].arrived <= trace.summary.arrived
    assert frames[-1].answered >= 0.97 * trace.summary.completed
    assert [frame.answered for frame in frames] == sorted(frame.answered for frame in frames)


def test_a_dead_server_is_shown_with_nothing_and_returns() -> None:
    _, frames = recorded()
    states = [frame.servers[0].up for frame in frames]
    first_down = states.index(False)
    first_up_again = states.index(True, first_down)
    assert 0.4 + 0.5 <= frames[first_down].at_s < 1.0, "a death is noticed half a second later"
    assert frames[first_up_again].at_s >= 1.2 + 0.5
    assert all(sum(frame.servers[0].at) == 0 for frame in frames if not frame.servers[0].up)
    assert [one.text for one in frames[-1].happenings] == ["server-0: down", "server-0: up again"]


def test_a_server_that_was_given_up_is_shown_so_until_it_is_up() -> None:
    view = view_of("paper")
    reason = "server-1 ended 5 times before it was ready (exit code 1) and was given up"
    view.observe(1.0, GATEWAY_NAME, ServerDown(server=1), [])
    view.observe(2.0, GATEWAY_NAME, ServerGivenUp(server=1, reason=reason, left=2), [])
    frame = view.frame(3.0)
    assert [server.given_up for server in frame.servers] == [False, True, False]
    assert frame.happenings[-1].text == reason
    view.observe(4.0, GATEWAY_NAME, ServerUp(server=1), [])
    assert not view.frame(5.0).servers[1].given_up


def test_a_change_of_the_goal_is_noted_with_its_words() -> None:
    view = view_of("paper")
    of_cats = parse_goal("min energy, accuracy>=70")
    goal = replace(parse_goal("accuracy>=75, p99<=60ms"), by_model={"cats": of_cats})
    view.observe(2.5, GATEWAY_NAME, GoalChanged(goal=goal), [])
    (happening,) = view.frame(3.0).happenings
    text = "the goal is now: accuracy>=75, p99<=60ms, max accuracy; cats: accuracy>=70, min energy"
    assert (happening.at_s, happening.kind, happening.text) == (2.5, "goal", text)


def test_one_verdict_is_said_of_a_limit_in_a_frame_and_in_the_summary() -> None:
    scenario = load_scenario("paper", goal="accuracy>=81, p99<=500ms")
    scenario = scenario.with_load(rate_per_s=14_000.0, seconds=2.5, warmup_s=0.0)
    trace = simulate(scenario, "goal", record=True)
    first, last = trace.frames[0], trace.frames[-1]
    assert [one.word for one in first.limits] == ["undecided"] * 2, "too few answers"
    words = ["broken", "kept"]
    assert [one.word for one in last.run_limits] == [one.word for one in trace.summary.verdicts] == words


def test_all_that_was_offered_adds_up() -> None:
    view = view_of("paper")
    view.observe(1.0, GATEWAY_NAME, RequestsRefused(counts=(30,)), [])
    ends = tuple(Request(id=n, arrival_s=1.0, deadline_s=2.0) for n in range(4))
    view.observe(1.0, GATEWAY_NAME, RequestsArrived(requests=ends), [])
    for at_s, one in ((1.5, ends[:1]), (2.5, ends[1:2])):
        done = tuple(replace(request, path=(0, 0, 0, 0)) for request in one)
        view.observe(at_s, GATEWAY_NAME, WakeAt(at_s=at_s), [Answer(requests=done)])
    for number, why in ((2, DropReason.DEADLINE_PASSED), (3, DropReason.EXECUTION_FAILED)):
        drop = Drop(requests=ends[number : number + 1], reason=why)
        view.observe(2.5, GATEWAY_NAME, WakeAt(at_s=2.5), [drop])
    frame = view.frame(3.0)
    assert frame.outcomes == {"in_time": 1, "late": 2, "refused": 30, "failed": 1}
    assert frame.arrived == 34
    assert frame.slo == 1 / 34, "what was refused is not in time"


def test_a_server_is_called_one_whatever_its_name() -> None:
    view = view_of("laptop")
    snapshot = ServerSnapshot(
        taken_s=0.0, queued=(0,), instances=1, utilization=0.5, power_w=10.0, vram_bytes=1
    )
    view.observe(0.5, GATEWAY_NAME, TelemetryReceived(server=1, snapshot=snapshot), [])
    view.observe(1.0, GATEWAY_NAME, ServerDown(server=1), [])
    view.observe(2.0, GATEWAY_NAME, ServerUp(server=1), [])
    happenings = view.frame(3.0).happenings
    assert [one.text for one in happenings] == ["server slow: down", "server slow: up again"]
    assert [one.kind for one in happenings] == ["down", "up"]


def test_figures_cover_the_last_second() -> None:
    trace, frames = recorded()
    answers, frame = trace.answers, frames[-1]
    window = answers.latency_s[(answers.answered_s > frame.at_s - 1.0) & (answers.answered_s <= frame.at_s)]
    assert frame.latency_p50_s is not None
    assert abs(frame.latency_p50_s - sorted(window)[len(window) // 2]) < 0.01 * frame.latency_p50_s + 1e-4
    assert abs(frame.arrival_per_s - 3000) < 300
    assert abs(sum(frame.choices) - 1.0) < 1e-9
    assert frame.bound_share is not None
    assert 0.5 < frame.bound_share <= 1.002, "the curve lies up to 0.2 % below the bound"


def test_the_guard_of_a_learned_router_is_counted() -> None:
    scenario = load_scenario("paper").with_load(rate_per_s=500.0, seconds=0.5)
    trace = simulate(scenario, "goal:shadow=1", seed=0, record=True)
    (counted,) = trace.frames[-1].guard.items()
    assert counted[0] == "shadow: the router"
    assert counted[1] > 10


def test_the_mix_of_choices_covers_the_segments_that_ran() -> None:
    _, frames = recorded()
    for shares in frames[-1].mix:
        assert abs(sum(shares) - 1.0) < 1e-9
    whole = [sum(shares[n] for shares in frames[-1].mix) / 4 for n in range(4)]
    assert all(abs(one - other) < 0.02 for one, other in zip(whole, frames[-1].choices, strict=True))


def test_names_of_several_models_stand_from_narrow_to_wide() -> None:
    three = ModelOutline(name="three", segments=(("0.25", "0.5", "1.0"),))
    four = ModelOutline(name="four", segments=(("0.25", "0.5", "0.75", "1.0"), ("exit", "1.0")))
    stages = Stages([three, four])
    assert stages.labels == ["three 1", "four 1", "four 2"]
    assert stages.models == [0, 1, 1]
    assert stages.names == ["0.25", "0.5", "0.75", "exit", "1.0"]
    assert stages.choices == [[0, 1, 4], [0, 1, 2, 4], [3, 4]]
    assert stages.name(1, 1, 0) == 3


def test_decisions_have_their_reasons() -> None:
    _, frames = recorded()
    assert all(decision.reason for decision in frames[-1].decisions)
    assert frames[-1].decisions[-1].at_s <= frames[-1].at_s


def test_the_curve_lies_at_the_bound_or_just_below() -> None:
    cluster = load_scenario("paper").cluster
    curve = BoundCurve(cluster)
    for rate in (10.0, 4000.0, 9200.0, 15000.0, 30000.0):
        bound = fluid_optimum(cluster, rate).accuracy
        assert bound - 0.002 <= curve.accuracy(rate) <= bound + 1e-6
