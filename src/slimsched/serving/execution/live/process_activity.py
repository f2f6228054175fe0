"""What the operating system says about a process: what it has done, and whether it could go on now."""

import os
from typing import NamedTuple

RUNNABLE, ON_DISK, STOPPED = b"R", b"D", b"T"


class Activity(NamedTuple):
    """What the threads of a process have done so far, and what they are at; all nothing where nobody knows.

    The system counts a wait for a core when the thread gets one. Of a thread that gets none, only its state
    tells that it waits.
    """

    ran_s: float = 0.0
    waited_s: float = 0.0
    is_runnable: bool = False
    """A thread runs, or would if it had a core."""
    is_on_disk: bool = False
    """A thread waits for a disk, or something else that nobody can interrupt."""


def activity_of(pid: int) -> Activity:
    """Return what the threads of a process have done, and what they are at."""
    ran_ns, waited_ns, states = 0, 0, set()
    folder = f"/proc/{pid}/task"
    try:
        threads = os.listdir(folder)
    except OSError:
        return Activity()
    for thread in threads:
        try:
            ran, waited, _ = _read(f"{folder}/{thread}/schedstat").split()
            states.add(_state(_read(f"{folder}/{thread}/stat")))
        except (OSError, ValueError):
            continue  # the thread has ended
        ran_ns += int(ran)
        waited_ns += int(waited)
    return Activity(ran_ns / 1e9, waited_ns / 1e9, RUNNABLE in states, ON_DISK in states)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process (SIGSTOP), so that it does nothing until it is continued."""
    try:
        return _state(_read(f"/proc/{pid}/stat")) == STOPPED
    except OSError:
        return False


def _read(path: str) -> bytes:
    """Read a small file of the system, without the cost of a file object: there are two for each thread."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def _state(stat: bytes) -> bytes:
    """Return the letter that stands for a state, after the name in brackets, which may hold anything."""
    return stat.rpartition(b")")[2].split()[0]
