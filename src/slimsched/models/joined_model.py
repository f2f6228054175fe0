"""Joined models ready to run: each choice is a choice of one member, with the member's own code."""

from collections.abc import Sequence

from torch import Tensor, device, nn

from slimsched.models.elastic import ElasticModel, Segment, Tensors
from slimsched.models.figures import ModelFigures
from slimsched.models.joined import Joined


class JoinedModel(ElasticModel):
    """Runs a plan in the member that its choices belong to.

    Members prepare inputs and finish outputs in their own ways, so both happen inside their first and last
    segments. If all members say how sure they are, that is one more tensor after the outputs.
    """

    def __init__(self, joined: Joined, members: Sequence[ElasticModel]) -> None:
        self.spec, self.joined, self.members = joined.spec, joined, tuple(members)
        self._place = {
            (segment, name): (segment, choice)
            for segment, names in enumerate(joined.spec.segments)
            for choice, name in enumerate(names)
        }

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Return a member's segment, with its `prepare` before the first and its `finish` after the last."""
        member, own = self._own(index, choice)
        elastic = self.members[member]
        before = self._own(index - 1, previous)[1] if previous is not None and index > 0 else None
        run = elastic.segment(index, own, before if elastic.spec.follows_previous else None)
        ends = self.spec.ends(*self._place[index, choice])
        return MemberSegment(run, elastic, first=index == 0, last=ends, sure=self.is_confident)

    def finish(self, last: Tensors) -> Tensors:
        """Return the outputs, which the member finished."""
        return last[: len(self.spec.outputs)]

    def confidence(self, last: Tensors) -> Tensor | None:
        """Return how sure the member is."""
        return last[-1] if self.is_confident else None

    @property
    def is_confident(self) -> bool:
        """Whether all members say how sure they are."""
        return all(member.is_confident for member in self.members)

    def place(self, device: device) -> None:
        """Move all members to a device."""
        for member in self.members:
            member.place(device)

    def modules(self) -> list[nn.Module]:
        """List the modules of all members."""
        return [module for member in self.members for module in member.modules()]

    def weights(self) -> dict[str, Tensor]:
        """Name the tensors of all members, with the member's name in front."""
        return {
            f"{member.spec.name}.{name}": tensor
            for member in self.members
            for name, tensor in member.weights().items()
        }

    def whole(self, plan: tuple[str, ...]) -> Segment | None:
        """Return the uncut member at a plan."""
        owners = [self._own(segment, name) for segment, name in enumerate(plan)]
        elastic = self.members[owners[0][0]]
        run = elastic.whole(tuple(name for _, name in owners))
        if run is None:
            return None
        return MemberSegment(run, elastic, first=True, last=True, sure=self.is_confident)

    def examples(self, count: int) -> Tensors | None:
        """Return the first member's typical inputs."""
        return self.members[0].examples(count)

    def figures(self) -> ModelFigures:
        """Return the members' figures."""
        return self.joined.figures

    def _own(self, segment: int, choice: str) -> tuple[int, str]:
        """Return the member of a choice, and the choice's name there."""
        member, own = self.joined.home[self._place[segment, choice]]
        return member, self.members[member].spec.segments[segment][own]


class MemberSegment:
    """A member's segment that also prepares inputs if it is the first, and finishes outputs if the last."""

    def __init__(self, run: Segment, elastic: ElasticModel, *, first: bool, last: bool, sure: bool) -> None:
        self.run, self.elastic = run, elastic
        self.first, self.last, self.sure = first, last, sure

    def __call__(self, tensors: Tensors) -> Tensors:
        """Raw inputs or activations -> activations, or outputs after the last segment."""
        tensors = self.run(self.elastic.prepare(tensors) if self.first else tensors)
        if not self.last:
            return tensors
        outputs = self.elastic.finish(tensors)
        sure = self.elastic.confidence(tensors) if self.sure else None
        return outputs if sure is None else (*outputs, sure)

    def weights(self) -> list[Tensor]:
        """List the segment's weights, as far as they are known."""
        if isinstance(self.run, nn.Module):
            return [*self.run.parameters(), *self.run.buffers()]
        listed = getattr(self.run, "weights", None)
        return list(listed()) if callable(listed) else []
