"""A goal: constraints a user states, and the one figure to make as good as they allow."""

from typing import Literal, get_args

from msgspec import Struct

from slimsched.kernel.errors import ConfigError

Objective = Literal["accuracy", "energy", "latency"]


class Goal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mean accuracy at least, 99th percentile of latency at most, and what to optimise within them.

    Zero means no constraint. Requests may ask for more: their own `min_accuracy` is a mask on width tuples.
    """

    objective: Objective = "accuracy"
    min_accuracy: float = 0.0
    p99_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_accuracy < 1.0:
            raise ConfigError(
                f"min_accuracy is {self.min_accuracy:g}; give a share such as 0.75, or percent such as 75"
            )
        if self.p99_s < 0.0:
            raise ConfigError(f"p99_ms is {1000 * self.p99_s:g}; give milliseconds above 0")
        if self.objective != "accuracy" and not self.min_accuracy:
            raise ConfigError(
                f"minimise={self.objective} needs min_accuracy: with no floor the narrowest always wins"
            )


def goal_of(
    *,
    minimise: str | None = None,
    maximise: str | None = None,
    min_accuracy: float = 0.0,
    p99_ms: float = 0.0,
) -> Goal:
    """A goal from the words of a command line; accuracy may be given in percent."""
    if minimise is not None and maximise is not None:
        raise ConfigError(f"minimise={minimise} and maximise={maximise}: give one objective")
    objective = minimise or maximise or "accuracy"
    if (objective == "accuracy") != (minimise is None) or objective not in get_args(Objective):
        raise ConfigError(
            f"objective '{objective}' is unknown: minimise energy or latency, or maximise accuracy"
        )
    return Goal(
        objective=objective,  # type: ignore[arg-type]
        min_accuracy=min_accuracy / 100.0 if min_accuracy > 1.0 else min_accuracy,
        p99_s=p99_ms / 1000.0,
    )
