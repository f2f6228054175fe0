"""The controller's rounds in real time: look, act, wait; and keep asking while Slurm is away."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

from slimsched.jobs.execution.slurm.controller import SlurmController
from slimsched.jobs.execution.slurm.error import SlurmError, SlurmUnreachableError
from slimsched.jobs.execution.slurm.observation import Clock, Observation


def run(
    controller: SlurmController,
    *,
    look: Callable[[], Observation],
    clock: Clock,
    poll_s: float,
    stop: Event,
    until_idle: bool,
    warn: Callable[[str], None],
    after_round: Callable[[], None],
) -> None:
    """Drive Slurm until told to stop, or until no job of ours is left."""
    away = False
    while not stop.is_set():
        try:
            seen = look()
            if away:
                warn("Slurm is back.")
                away = False
                controller.slurm_was_away(until_unix_s=seen.unix_s)
            controller.round(seen)
            after_round()
        except SlurmUnreachableError as error:
            if not away:
                warn(f"{error} Asking again every {poll_s:g} s.")
            away = True
            stop.wait(poll_s)
            continue
        if until_idle and controller.scheduler is not None and not controller.jobs:
            return
        stop.wait(max(0.0, min(poll_s, clock.unix_s(controller.wake_s) - time.time())))


@contextmanager
def sole_controller(cluster: str, partition: str | None) -> Iterator[None]:
    """Refuse to run while another controller on this machine drives the same cluster and partition.

    The lock is a name in Linux' abstract socket space: it goes with the process, however that ends.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        try:
            lock.bind(f"\0slim-controller-{cluster}-{partition or 'all'}")
        except OSError:
            raise SlurmError(
                f"another controller drives cluster '{cluster}' from this machine; stop it first"
            ) from None
        yield
