"""The heartbeat: who counts as hung, and who does not, by what servers say and the system says about them."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from slimsched.serving.live.processes import (
    BEAT_S,
    BUSY_BEATS,
    FULL_S,
    SILENT_BEATS,
    Activity,
    CoreWaits,
    Heartbeat,
    OwnBeats,
    StartLimit,
)
from slimsched.serving.live.wire import FrameConnection, Ping, Pong, ToGateway, ToServer

YEAR_BEATS = 1000  # long after every limit


class Server:
    """The far end of a connection, which answers while `answers` is set."""

    def __init__(self) -> None:
        self.answers = True
        self.pings = 0

    async def connect(self) -> FrameConnection:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        _, near = await loop.create_connection(
            lambda: FrameConnection(ToGateway, lambda *_: None, lambda _: None), sock=ours
        )
        await loop.create_connection(
            lambda: FrameConnection(ToServer, self._received, lambda _: None), sock=theirs
        )
        return near

    def _received(self, connection: FrameConnection, message: ToServer) -> None:
        assert isinstance(message, Ping)
        self.pings += 1
        if self.answers:
            connection.send(Pong())


def beating(test: Callable[[Server, Callable[[], Awaitable[list[int]]]], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server()
        connection = await server.connect()
        heartbeat = Heartbeat()

        async def beat() -> list[int]:
            suspected = heartbeat.beat({7: connection})
            await asyncio.sleep(0.01)  # for the answer
            return suspected

        await beat()
        await test(server, beat)
        connection.abort()

    asyncio.run(main())


def test_a_server_that_answers_is_never_suspected() -> None:
    async def test(server: Server, beat: Callable[[], Awaitable[list[int]]]) -> None:
        for _ in range(3 * SILENT_BEATS):
            assert await beat() == []
        assert server.pings == 3 * SILENT_BEATS + 1

    beating(test)


def test_a_server_is_suspected_after_so_many_silent_beats_and_a_sign_of_life_forgives_all() -> None:
    async def test(server: Server, beat: Callable[[], Awaitable[list[int]]]) -> None:
        for _ in range(3):
            server.answers = False
            await beat()  # the answer to the one before is still heard
            for _ in range(SILENT_BEATS - 1):
                assert await beat() == []
            server.answers = True
            await beat()
        server.answers = False
        await beat()
        suspected = [await beat() for _ in range(SILENT_BEATS)]
        assert suspected == [[]] * (SILENT_BEATS - 1) + [[7]]

    beating(test)


@dataclass(eq=False)
class Line:
    """A connection whose other end is silent unless it is told to speak."""

    speaks: bool = False

    def spoke_since(self) -> bool:
        return self.speaks

    def send(self, message: Ping) -> None:
        pass


@dataclass
class Process:
    """A process as the system shows it at each beat: how much of the beat it ran, and its state then."""

    ran: float = 0.0
    waited: float = 0.0
    state: str = "S"
    line: Line = field(default_factory=Line)
    _total_s: list[float] = field(default_factory=lambda: [100.0, 10.0])

    def __post_init__(self) -> None:
        self.heartbeat = Heartbeat(lambda server: self.look())

    def look(self) -> Activity:
        self._total_s[0] += self.ran * BEAT_S
        self._total_s[1] += self.waited * BEAT_S
        return Activity(*self._total_s, self.state == "R", self.state == "D")

    def beat(self) -> bool:
        """Return whether the process is suspected after one more beat."""
        return self.heartbeat.beat({7: cast(FrameConnection, self.line)}) == [7]

    def beats_until_suspected(self) -> int | None:
        return next((beats for beats in range(1, YEAR_BEATS) if self.beat()), None)


@pytest.mark.parametrize("state", ["S", "T", "Z"])
def test_one_that_sleeps_or_is_stopped_is_suspected_soon(state: str) -> None:
    assert Process(state=state).beats_until_suspected() == SILENT_BEATS


def test_one_that_could_run_and_never_gets_a_core_is_not_to_blame() -> None:
    process = Process(state="R")
    assert process.beats_until_suspected() is None
    assert process.heartbeat.core_waits_s[7] == pytest.approx((YEAR_BEATS - 2) * BEAT_S)


def test_one_that_runs_without_an_answer_gets_more_time_but_not_for_ever() -> None:
    assert Process(ran=1.0, state="R").beats_until_suspected() == BUSY_BEATS
    assert Process(ran=8.0, state="R").beats_until_suspected() == BUSY_BEATS, "eight threads"
    assert Process(ran=0.5, state="S").beats_until_suspected() == BUSY_BEATS, "it sleeps half of the time"
    assert Process(waited=0.5, state="S").beats_until_suspected() == BUSY_BEATS, "it waited, not at the end"
    assert Process(state="D").beats_until_suspected() == BUSY_BEATS, "it waits for a disk"


def test_of_a_beat_in_which_one_had_a_core_for_a_quarter_a_quarter_counts() -> None:
    assert Process(ran=0.25, state="R").beats_until_suspected() == 4 * BUSY_BEATS - 3  # the first one counts


def test_one_that_is_stopped_after_it_waited_long_for_a_core_is_noticed_as_soon_as_any() -> None:
    process = Process(state="R")
    assert not any(process.beat() for _ in range(200))
    process.state = "T"
    assert process.beats_until_suspected() == SILENT_BEATS


def test_one_that_works_now_and_then_is_not_hung() -> None:
    process = Process()
    for beat in range(60):
        process.ran = 0.3 if beat % (SILENT_BEATS - 1) == 0 else 0.0
        assert not process.beat()


def test_a_word_ends_the_wait_for_a_core() -> None:
    process = Process(state="R")
    for _ in range(40):
        process.beat()
    process.line.speaks = True
    process.beat()
    assert process.heartbeat.core_waits_s == {}
    process.line.speaks = False
    process.beat()
    assert process.heartbeat.core_waits_s == {7: 0.0}


def test_threads_that_end_take_no_time_back() -> None:
    own = OwnBeats()
    for ran_s in (10.0, 10.25, 3.0, 3.25):
        own.count(Activity(ran_s=ran_s, is_runnable=True))
    assert own.beats == 3.0
    assert own.waited_beats == 1.0


def beats_of(limit: StartLimit, server: int = 7) -> int | None:
    return next((beats for beats in range(1, YEAR_BEATS) if limit.beat([server])), None)


def test_a_start_has_a_limit_and_waits_for_a_core_do_not_count() -> None:
    assert beats_of(StartLimit(10.0, lambda server: Activity())) == 10 / BEAT_S + 1, "it sleeps: it hangs"
    busy, slow, starved = Process(ran=1.0, state="R"), Process(ran=0.5, state="R"), Process(state="R")
    assert beats_of(StartLimit(10.0, lambda server: busy.look())) == 10 / BEAT_S + 1
    assert beats_of(StartLimit(10.0, lambda server: slow.look())) == 20 / BEAT_S, "half of a core"
    assert beats_of(StartLimit(10.0, lambda server: starved.look())) is None


def test_of_a_start_that_takes_longer_because_it_gets_no_core_the_wait_is_known() -> None:
    slow = Process(ran=0.5, state="R")
    limit = StartLimit(10.0, lambda server: slow.look())
    for _ in range(int(10 / BEAT_S)):
        assert limit.beat([7]) == []
        assert limit.core_waits_s == {}, "it is not late yet"
    assert limit.beat([7]) == []
    assert limit.core_waits_s == {7: pytest.approx(5.0)}
    limit.beat([])
    assert limit.core_waits_s == {}


def test_a_start_that_is_over_is_forgotten() -> None:
    limit = StartLimit(10.0, lambda server: Activity())
    first = beats_of(limit)
    assert limit.beat([7]) == [7]
    limit.forget(7)
    assert beats_of(limit) == first


def test_a_full_machine_is_said_once_and_once_that_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    waits = CoreWaits(logging.getLogger("slim.engine"), ["server one", "server two"].__getitem__)
    caplog.set_level(logging.INFO, "slim.engine")

    def said(waits_s: Sequence[float]) -> tuple[list[str], list[int]]:
        caplog.clear()
        waits.update({server: wait_s for server, wait_s in enumerate(waits_s) if wait_s})
        return caplog.messages, list(waits.waiting)

    assert said([FULL_S - BEAT_S, 1.0]) == ([], [])
    lines, waiting = said([FULL_S, 1.0])
    assert (waiting, len(lines)) == ([0], 1)
    assert lines[0].startswith("server one has waited 5 s for a core: this machine is full (load ")
    assert lines[0].endswith(" cores); it is not ended")
    assert said([37.0, 1.0]) == ([], [0])
    assert said([0.0, 1.0]) == (["server one waits for a core no longer, after 37 s"], [])
