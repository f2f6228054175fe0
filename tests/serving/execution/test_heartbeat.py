"""The heartbeat: who counts as hung, and who does not, with real sockets and real processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import pytest

from slimsched.serving.execution.live.frame_connection import FrameConnection
from slimsched.serving.execution.live.heartbeat import BEAT_S, BUSY_BEATS, SILENT_BEATS, Heartbeat
from slimsched.serving.execution.live.messages import Ping, Pong, ToGateway, ToServer
from slimsched.serving.execution.live.process_activity import activity_s, is_stopped


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


def beating(test: Callable[[Server, Callable[[], Awaitable[list[int]]]], Awaitable[None]], activity_s=None):  # type: ignore[no-untyped-def]
    async def main() -> None:
        server = Server()
        connection = await server.connect()
        heartbeat = Heartbeat(activity_s) if activity_s else Heartbeat()

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


def test_a_silent_server_that_works_gets_more_time_but_not_for_ever() -> None:
    worked_s = 0.0

    def activity(server: int) -> float:
        nonlocal worked_s
        worked_s += BEAT_S
        return worked_s

    async def test(server: Server, beat: Callable[[], Awaitable[list[int]]]) -> None:
        server.answers = False
        await beat()
        suspected = [await beat() for _ in range(BUSY_BEATS)]
        assert suspected == [[]] * (BUSY_BEATS - 1) + [[7]]

    beating(test, activity)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the system does not say")
def test_a_process_that_holds_pythons_lock_is_active_and_a_stopped_one_is_not() -> None:
    busy = "sum(range(10**12))"  # one call in C that keeps the lock
    process = subprocess.Popen([sys.executable, "-c", busy])
    try:
        time.sleep(0.5)
        before_s = activity_s(process.pid)
        time.sleep(0.5)
        assert activity_s(process.pid) - before_s > 0.25, "it ran, or waited for a core"
        assert not is_stopped(process.pid)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.1)
        before_s = activity_s(process.pid)
        time.sleep(0.5)
        assert activity_s(process.pid) == before_s
        assert is_stopped(process.pid)
    finally:
        process.kill()
        process.wait()
    assert activity_s(process.pid) == 0.0
