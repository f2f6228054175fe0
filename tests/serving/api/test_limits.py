"""The limits in bytes and in time: what is let in follows what servers can do, not a number of examples."""

from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from slimsched.serving.api.limits import Limits, TooMany, Unavailable, fitted, shared
from slimsched.serving.api.service import InferenceService, Phase
from slimsched.serving.domain.request import DropReason, Terms
from slimsched.serving.live.memory import memory_bytes

GIB, MIB = 2**30, 2**20
IMAGE_BYTES = 3 * 32 * 32


class Busy:
    """As much of a cluster as admission at the door depends on."""

    models, arena, any_alive = (), None, True
    now_s = 0.0

    def __init__(self, in_system: int, wait_s: float, queue_s: float) -> None:
        self.in_system, self._wait_s, self._queue_s = in_system, wait_s, queue_s

    def wait_s(self, priority: int) -> float:
        return self._wait_s

    def refusal(self, *asked: object, **more: object) -> DropReason | None:
        return DropReason.QUEUE_FULL if self._wait_s > self._queue_s else None


def ask(in_system: int, *, wait_s: float = 0.1, count: int = 64, **limits: float) -> None:
    """Ask the door to let in a call while so much is under way."""
    asked = Limits(**limits)  # type: ignore[arg-type]
    service = InferenceService(cast(Any, Busy(in_system, wait_s, asked.queue_s)), asked)
    service.phase = Phase.READY
    service.admit(cast(Any, SimpleNamespace(number=0)), Terms(), count, 0.0)


def held_bytes(row_bytes: int, memory: int, **limits: int) -> int:
    return fitted(Limits(**limits), row_bytes, 4, memory).held_bytes


@pytest.mark.parametrize("in_system", [4096, 16_384, 80_000])
def test_many_examples_are_let_in_where_the_work_ahead_is_short(in_system: int) -> None:
    ask(in_system)


def test_a_call_behind_too_much_work_is_told_when_to_come_back() -> None:
    ask(640, wait_s=9.9)
    with pytest.raises(TooMany, match="the work ahead takes about 14 s, 10 s are the limit") as refused:
        ask(640, wait_s=14.0)
    assert refused.value.retry_after_s == pytest.approx(4.0)
    ask(640, wait_s=14.0, queue_s=15.0)


def test_a_number_of_examples_is_a_limit_where_it_is_set() -> None:
    ask(36, examples_in_system=100)
    with pytest.raises(TooMany, match="37 examples are under way, 100 are the limit"):
        ask(37, examples_in_system=100)


def test_tiny_examples_count_as_a_kibibyte_each() -> None:
    ask(960, held_bytes=MIB)
    with pytest.raises(Unavailable, match="961 examples are under way, more cannot be held"):
        ask(961, held_bytes=MIB)


@pytest.mark.parametrize(
    ("row_bytes", "memory", "held"),
    [
        (IMAGE_BYTES, GIB, 96 * MIB),
        (IMAGE_BYTES, 16 * GIB, 1024 * 64 * IMAGE_BYTES),
        (IMAGE_BYTES, 128 * GIB, 512 * MIB),
        (3 * 224 * 224, 16 * GIB, GIB),
        (3 * 224 * 224, GIB, 96 * MIB),
        (4 * MIB, GIB, 4 * (64 * 4 * MIB + 2**16)),
        (4, 16 * GIB, 96 * MIB),
    ],
)
def test_bytes_follow_the_models_and_the_memory(row_bytes: int, memory: int, held: int) -> None:
    assert held_bytes(row_bytes, memory) == held
    assert held_bytes(row_bytes, memory, examples_in_system=10**6) == held
    assert held_bytes(row_bytes, memory, held_bytes=7) == 7


def test_a_full_request_of_tiny_examples_can_be_held() -> None:
    assert held_bytes(1, GIB, examples_per_request=10**6) >= 10**6 * 2**10


def test_fronts_share_the_bytes() -> None:
    limits = fitted(Limits(), IMAGE_BYTES, 4, 128 * GIB)
    assert shared(limits, 4).held_bytes == 128 * MIB


def test_memory_is_what_the_container_may_use(tmp_path: Path) -> None:
    machine, limit = memory_bytes(()), tmp_path / "memory.max"
    assert MIB < machine < inf
    for text, known in (("1048576\n", MIB), ("max\n", machine), (f"{2**63}\n", machine)):
        limit.write_text(text)
        assert memory_bytes((limit, tmp_path / "missing")) == known
