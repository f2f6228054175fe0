"""What the system says about processes: real ones that sleep, are stopped, run, or get no core."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from slimsched.serving.live.processes import (
    BEAT_S,
    BUSY_BEATS,
    SILENT_BEATS,
    Activity,
    OwnBeats,
    activity_of,
    is_stopped,
)

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="no /proc/self/schedstat: needs a Linux with it"
)

BUSY = "while True: pass"
LOCKED = "sum(range(10**12))"  # one call in C that keeps Python's lock
SLEEPS = "import time; time.sleep(1000)"
BEATS = 4


@contextmanager
def running(code: str, *, core: int | None = None, niceness: int = 0) -> Iterator[int]:
    """A process that runs this code, on one core if it is named."""
    process = subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{code}"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def watched(pid: int, beats: int = BEATS) -> OwnBeats:
    """Count beats of a process in real time."""
    own = OwnBeats()
    for _ in range(beats + 1):
        own.count(activity_of(pid))
        time.sleep(BEAT_S)
    return own


def test_a_sleeping_process_does_nothing() -> None:
    with running(SLEEPS) as pid:
        time.sleep(0.2)
        own = watched(pid)
        assert not activity_of(pid).is_runnable
        assert own.still_beats == own.beats == BEATS + 1
        assert BEATS + 1 == SILENT_BEATS, "so it would be suspected"


def test_a_stopped_process_does_nothing_although_it_was_busy() -> None:
    with running(BUSY) as pid:
        assert not is_stopped(pid)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)
        assert is_stopped(pid)
        own = watched(pid)
        assert own.still_beats == BEATS + 1
        assert own.waited_beats == 0.0


@pytest.mark.parametrize("code", [BUSY, LOCKED])
def test_a_busy_process_is_runnable_and_runs(code: str) -> None:
    with running(code) as pid:
        before = activity_of(pid)
        own = watched(pid)
        after = activity_of(pid)
    assert after.is_runnable
    assert own.still_beats == 0
    worked_s = (after.ran_s - before.ran_s) + (after.waited_s - before.waited_s)
    assert worked_s > 0.5 * BEATS * BEAT_S, "it ran, or waited for a core"
    assert activity_of(pid) == Activity(), "it has ended"


def test_a_process_that_gets_no_core_is_runnable_and_does_not_run() -> None:
    core = max(os.sched_getaffinity(0))
    loop = partial(running, BUSY, core=core, niceness=-20)
    try:
        with running(BUSY, core=core) as pid, loop(), loop():
            own = watched(pid, 2 * BEATS)
            assert activity_of(pid).is_runnable
    except PermissionError:
        pytest.skip("this user may not raise a priority")
    assert own.still_beats == 0, "it is not hung"
    assert own.waited_beats > 1.5 * BEATS, "it waited for a core"
    assert own.beats < 1 + 0.5 * BEATS, "so little counts against it"
    assert own.beats < BUSY_BEATS


@pytest.mark.slow
@pytest.mark.alone  # it must get its half of the core
def test_a_process_that_shares_a_core_is_runnable_and_runs_for_its_share() -> None:
    core = max(os.sched_getaffinity(0))
    with running(BUSY, core=core) as pid, running(BUSY, core=core):
        own = watched(pid, 2 * BEATS)
    assert own.still_beats == 0
    assert own.waited_beats > 0.5 * BEATS
    assert own.beats > 2.0
