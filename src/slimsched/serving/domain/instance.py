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


TRANSITIONS: dict[tuple[InstanceState, str], InstanceState] = {
    (InstanceState.LOADING, "loaded"): InstanceState.FREE,
    (InstanceState.FREE, "run"): InstanceState.BUSY,
    (InstanceState.BUSY, "finished"): InstanceState.FREE,
    (InstanceState.FREE, "unload"): InstanceState.UNLOADING,
    (InstanceState.UNLOADING, "unloaded"): InstanceState.GONE,
}
"""(state, step) → state; a pair that is missing here is a bug in the caller."""


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
    try:
        return TRANSITIONS[state, step]
    except KeyError:
        raise SlimError(
            f"instance {instance.id} (segment {instance.segment} at choice {instance.choice}) is {state}: "
            f"it cannot take the step '{step}'"
        ) from None
