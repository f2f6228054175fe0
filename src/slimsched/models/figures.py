"""The figures of a model: arithmetic, memory traffic, weights and activations.

`slim model check` measures them in a dry run; SlimResNet and SlimViT compute them by formula. Simulated
devices and links need them; routing does not.
"""

from msgspec import Struct

from slimsched.models.spec import ModelSpec, Path, Step

Place = tuple[int, int]
"""(segment, choice)."""


class StepFigures(Struct, frozen=True, array_like=True):
    """Cost of one step per example: multiply-accumulates, and numbers read from or written to memory."""

    macs: int
    moved: int


class ModelFigures(Struct, frozen=True, kw_only=True):
    """The figures of all steps, and of each segment at each choice.

    `weights` counts parameters, `output` the numbers in a segment's output per example, `workspace` the
    numbers per example in memory at once while it runs.
    """

    steps: dict[Step, StepFigures]
    weights: dict[Place, int]
    output: dict[Place, int]
    workspace: dict[Place, int]

    def plan_macs(self, spec: ModelSpec, plan: Path) -> int:
        """Return the multiply-accumulates of one example through a plan."""
        return sum(self.steps[spec.step(plan[:length])].macs for length in range(1, len(plan) + 1))

    def plan_weights(self, plan: Path) -> int:
        """Return the parameters of all segments of a plan."""
        return sum(self.weights[place] for place in enumerate(plan))
