"""An instance: one segment at one choice, loaded on a device and able to run one batch at a time."""

from enum import StrEnum

from msgspec import Struct

from slimsched.kernel.errors import SlimError


class InstanceState(StrEnum):
    """The states of an instance."""

    LOADING = "loading"
    FREE = "free"
    BUSY = "busy"
    UNLOADING = "unloading"
    GONE = "gone"


TRANSITIONS: dict[str, tuple[InstanceState, InstanceState]] = {
    "loaded": (InstanceState.LOADING, InstanceState.FREE),
    "run": (InstanceState.FREE, InstanceState.BUSY),
    "finished": (InstanceState.BUSY, InstanceState.FREE),
    "unload": (InstanceState.FREE, InstanceState.UNLOADING),
    "unloaded": (InstanceState.UNLOADING, InstanceState.GONE),
}
"""Each step: the state in which it is possible, and the state after it."""


class Instance(Struct, frozen=True, kw_only=True):
    """An execution slot for one segment at one choice; in a nested model it can run narrower choices too."""

    id: int
    segment: int
    choice: int
    memory_bytes: int
    model: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """(model, segment, choice)."""
        return self.model, self.segment, self.choice


def next_state(instance: Instance, state: InstanceState, step: str) -> InstanceState:
    """Return the state after a step; an impossible step is an error."""
    before, after = TRANSITIONS[step]
    if state is not before:
        raise SlimError(
            f"instance {instance.id} (segment {instance.segment} at choice {instance.choice}) is {state}: "
            f"it cannot take the step '{step}'"
        )
    return after
