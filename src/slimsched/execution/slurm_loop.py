"""The controller's rounds in real time: look, act, wait; and wait longer while Slurm is away."""

import time
from collections.abc import Callable
from threading import Event

from slimsched.execution.slurm_client import SlurmClient
from slimsched.execution.slurm_controller import SlurmController
from slimsched.execution.slurm_error import SlurmUnreachableError
from slimsched.execution.slurm_observation import observe
from slimsched.execution.slurm_preflight import Preflight


def run(
    controller: SlurmController,
    client: SlurmClient,
    *,
    preflight: Preflight,
    partition: str | None,
    poll_s: float,
    stop: Event,
    until_idle: bool = False,
    warn: Callable[[str], None] = lambda text: None,
) -> None:
    """Drive Slurm until told to stop, or until no job of ours is left."""
    away = False
    while not stop.is_set():
        try:
            seen = observe(client, racks=preflight.racks, partition=partition, now_s=time.time())
            controller.round(seen)
        except SlurmUnreachableError as error:
            if not away:
                warn(f"{error} Trying again every {poll_s:g} s.")
            away = True
            stop.wait(poll_s)
            continue
        if away:
            warn("Slurm is back.")
            away = False
        if until_idle and controller.scheduler is not None and not controller.jobs:
            return
        stop.wait(max(0.0, min(poll_s, controller.wake_s - time.time())))
