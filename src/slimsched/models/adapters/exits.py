"""Exits: a chain that can stop early, with a small head at every exit.

    Exits(spec, bodies=[first, second, third], heads=[head1, head2, head3])

Every segment but the last has two choices: stop at its head, or go on. The last has one. For three segments
`plans = [["exit"], ["on", "exit"], ["on", "on", "last"]]`.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from slimsched.models.adapters.adapter import Adapter, Function, as_segment, require
from slimsched.models.elastic import Segment
from slimsched.models.spec import ModelSpec, Path


class Exits(Adapter):
    """One body and one head per segment. All heads give the outputs of the spec."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        bodies: Sequence[nn.Module],
        heads: Sequence[nn.Module],
        prepare: Function | None = None,
        finish: Function | None = None,
    ) -> None:
        super().__init__(spec, prepare=prepare, finish=finish)
        count = len(spec.segments)
        require(
            len(bodies) == len(heads) == count,
            f"model '{spec.name}' has {count} segments, not {len(bodies)} bodies and {len(heads)} heads",
            "give one body and one head per segment",
        )
        sizes = [len(choices) for choices in spec.segments]
        require(
            sizes == [2] * (count - 1) + [1],
            f"model '{spec.name}' has {sizes} choices by segment; exits need two everywhere but in the last",
            'describe choices = ["exit", "on"], and one choice such as ["last"] at the end',
        )
        require(
            set(spec.plans) <= set(exit_plans(count)),
            f"model '{spec.name}' has plans that go on after an exit, or stop without one",
            f"describe plans = {[[spec.segments[s][c] for s, c in enumerate(p)] for p in exit_plans(count)]}",
        )
        self.bodies, self.heads = nn.ModuleList(bodies), nn.ModuleList(heads)

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Run a body and, at an exit, its head."""
        body, head = self.bodies[index], self.heads[index]
        goes_on = choice == self.spec.segments[index][-1] and index < len(self.bodies) - 1
        return as_segment(body if goes_on else lambda *tensors: head(body(*tensors)))

    def modules(self) -> list[nn.Module]:
        """List bodies and heads."""
        return [self.bodies, self.heads]

    def weights(self) -> dict[str, Tensor]:
        """Name the tensors 'bodies.0.…' and 'heads.0.…'."""
        named = {"bodies": self.bodies, "heads": self.heads}
        return {
            f"{name}.{key}": one for name, part in named.items() for key, one in part.state_dict().items()
        }


def exit_plans(segments: int) -> tuple[Path, ...]:
    """List one plan per exit, the first exit first."""
    return tuple((1,) * index + (0,) for index in range(segments))
