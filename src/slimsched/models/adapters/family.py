"""Family: unrelated models for the same task, the smaller ones for when time is short.

    Family(spec, {"lite0": small, "lite1": medium, "lite2": large})

The model has one segment, whose choices are the members. They share no weights.
"""

from collections.abc import Mapping

from torch import Tensor, nn

from slimsched.models.adapters.adapter import Adapter, Function, as_segment, require
from slimsched.models.elastic import Segment
from slimsched.models.spec import ModelSpec


class Family(Adapter):
    """One segment whose choices are the modules given, by the names of the choices."""

    def __init__(
        self,
        spec: ModelSpec,
        members: Mapping[str, nn.Module],
        *,
        prepare: Function | None = None,
        finish: Function | None = None,
    ) -> None:
        super().__init__(spec, prepare=prepare, finish=finish)
        require(
            len(spec.segments) == 1,
            f"model '{spec.name}' has {len(spec.segments)} segments; a family has one",
            "describe one [[segment]] whose choices are the members",
        )
        require(
            set(spec.segments[0]) == set(members),
            f"model '{spec.name}' has choices {', '.join(spec.segments[0])}, but the members given are "
            f"{', '.join(members)}",
            "give one member per choice",
        )
        require(
            not spec.nested,
            f"model '{spec.name}' says nested = true, but the members of a family share no weights",
            "set nested = false",
        )
        self.members = dict(members)

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Return one member."""
        return as_segment(self.members[choice])

    def modules(self) -> list[nn.Module]:
        """List all members."""
        return list(self.members.values())

    def weights(self) -> dict[str, Tensor]:
        """Name each member's tensors, with the member's name in front."""
        return {
            f"{name}.{key}": tensor
            for name, member in self.members.items()
            for key, tensor in member.state_dict().items()
        }
