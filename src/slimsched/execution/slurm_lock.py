"""One controller a cluster and partition on this machine; the lock goes with the process, however it ends."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slimsched.execution.slurm_error import SlurmError


@contextmanager
def sole_controller(cluster: str, partition: str | None) -> Iterator[None]:
    """Refuse to run while another controller drives the same machines."""
    path = Path(tempfile.gettempdir()) / f"slim-{os.getuid()}-{cluster}-{partition or 'all'}.lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SlurmError(
                f"another controller drives cluster '{cluster}' (lock {path}); stop it first"
            ) from None
        yield
