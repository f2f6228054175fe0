"""What the operating system says about a process: whether it works, waits for a core, or is stopped."""

from pathlib import Path

PROC = Path("/proc")


def activity_s(pid: int) -> float:
    """Return the time that all threads of a process have run or waited for a core; 0 where nobody knows."""
    total_ns = 0
    for thread in (PROC / str(pid) / "task").glob("*/schedstat"):
        try:
            ran_ns, waited_ns, _ = thread.read_text().split()
        except (OSError, ValueError):
            continue  # the thread has ended
        total_ns += int(ran_ns) + int(waited_ns)
    return total_ns / 1e9


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process (SIGSTOP), so that it does nothing until it is continued."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"
