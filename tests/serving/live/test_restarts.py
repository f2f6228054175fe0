"""When a server that ended starts again, and when it is given up."""

from slimsched.serving.live.processes import FAILED_STARTS, HEALTHY_S, RESTART_AFTER_S, TRY_AGAIN_S, Restarts


def live(restarts: Restarts, began_s: float, lasted_s: float) -> float:
    restarts.ready(began_s, 4.06)
    return restarts.ended(began_s + lasted_s)


def test_after_health_a_server_starts_again_soon_however_often_it_has_died() -> None:
    restarts = Restarts()
    waits = [live(restarts, 100.0 * life, HEALTHY_S) for life in range(50)]
    assert waits == [RESTART_AFTER_S[0]] * 50


def test_short_lives_make_the_wait_longer_but_a_server_that_gets_ready_is_never_given_up() -> None:
    restarts = Restarts()
    waits = [live(restarts, 10.0 * life, 0.1) for life in range(50)]
    assert waits[:5] == list(RESTART_AFTER_S[1:])
    assert set(waits[5:]) == {RESTART_AFTER_S[-1]}
    assert live(restarts, 1000.0, HEALTHY_S) == RESTART_AFTER_S[0], "health resets it"


def test_a_server_that_never_gets_ready_is_given_up_but_still_tried_now_and_then() -> None:
    restarts = Restarts()
    waits = []
    for start in range(FAILED_STARTS):
        assert not restarts.is_given_up
        waits.append(restarts.ended(float(start)))
    assert restarts.is_given_up
    assert max(waits[:-1]) < waits[-1] == TRY_AGAIN_S
    assert live(restarts, 100.0, HEALTHY_S) == RESTART_AFTER_S[0]
    assert not restarts.is_given_up


def test_only_failed_starts_in_a_row_count() -> None:
    restarts = Restarts()
    for start in range(50):
        for _ in range(FAILED_STARTS - 1):
            restarts.ended(float(start))
            assert not restarts.is_given_up
        live(restarts, float(start), 1.0)


def test_it_is_said_when_a_server_is_started_again_and_how_long_that_took() -> None:
    restarts = Restarts()
    assert restarts.outlook(RESTART_AFTER_S[0]) == "it is started again at once"
    assert restarts.outlook(5.0) == "it is started again in 5 s"
    assert restarts.outlook(live(restarts, 0.0, HEALTHY_S)) == (
        "it is started again at once; the last start took 4.1 s"
    )
    restarts.ended(100.0)
    assert restarts.outlook(2.0) == "it is started again in 2 s; the last start took 4.1 s"
