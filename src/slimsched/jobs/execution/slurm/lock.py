"""One controller a cluster and partition on this machine; the lock goes with the process, however it ends."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from slimsched.jobs.execution.slurm.error import SlurmError


@contextmanager
def sole_controller(cluster: str, partition: str | None) -> Iterator[None]:
    """Refuse to run while another controller drives the same machines.

    The lock is a name in Linux' abstract socket space: it leaves no file behind.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0slim-controller-{cluster}-{partition or 'all'}")
        except OSError:
            raise SlurmError(
                f"another controller drives cluster '{cluster}' from this machine; stop it first"
            ) from None
        yield
