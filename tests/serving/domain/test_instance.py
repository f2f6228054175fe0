import pytest

from slimsched.core.config import SlimError
from slimsched.serving.domain.cluster import TRANSITIONS, Instance, InstanceState, next_state

INSTANCE = Instance(id=7, segment=2, choice=1, memory_bytes=1)


def test_an_instance_lives_from_loading_to_gone() -> None:
    state = InstanceState.LOADING
    for step in ("loaded", "run", "finished", "run", "finished", "unload", "unloaded"):
        state = next_state(INSTANCE, state, step)
    assert state is InstanceState.GONE


def test_a_step_that_is_not_in_the_table_names_state_and_step() -> None:
    with pytest.raises(
        SlimError, match=r"instance 7 \(segment 2 at choice 1\) is busy: it cannot take the step 'unload'"
    ):
        next_state(INSTANCE, InstanceState.BUSY, "unload")


def test_nothing_leaves_gone() -> None:
    assert not [step for step, (before, _) in TRANSITIONS.items() if before is InstanceState.GONE]
