"""What a model computes and moves, in numbers: arithmetic, memory traffic, weights and activations.

`slim model check` finds them by a dry run; SlimResNet's come from its formulas. Device models and links
need them, routing itself does not.
"""

from msgspec import Struct

from slimsched.models.spec import Step

Place = tuple[int, int]
"""(segment, choice)."""


class StepFigures(Struct, frozen=True, array_like=True):
    """One example through one step: multiply-accumulates, and numbers read from or written to memory."""

    macs: int
    moved: int


class ModelFigures(Struct, frozen=True, kw_only=True):
    """`output` counts the numbers that one example hands on after a segment; `workspace` those that are
    alive at once while it runs; `weights` the parameters of a segment at a choice.
    """

    steps: dict[Step, StepFigures]
    weights: dict[Place, int]
    output: dict[Place, int]
    workspace: dict[Place, int]
