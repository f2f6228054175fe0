"""The machines of a job run, made anew from its log: what `slim replay` needs."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from slimsched.jobs.execution.setting import SchedulerSetting
from slimsched.jobs.scheduler.messages import Event, LiveEvent
from slimsched.jobs.telemetry.entries import SCHEDULER_NAME
from slimsched.kernel.errors import DataError
from slimsched.kernel.replay import Replayable


def machines_of(setting: Mapping[str, Any]) -> Callable[[str], Replayable]:
    """Read a log's setting, and return what makes its one machine, the scheduler, by name."""
    try:
        known = msgspec.convert(setting, SchedulerSetting)
    except msgspec.ValidationError as error:
        raise DataError(f"the log's header is not that of a job run: {error}") from None

    def make(name: str) -> Replayable:
        if name != SCHEDULER_NAME:
            raise DataError(f"a job run has one machine, '{SCHEDULER_NAME}'; the log names '{name}'")
        if known.engine == "slurm":
            return Replayable(known.live_scheduler(), LiveEvent)
        return Replayable(known.scheduler(), Event)

    return make
