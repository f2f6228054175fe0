"""A model as the scheduler sees it: its spec, the tree of its plans, their quality and their figures.

An outline holds the names that logs and reports need without the model. Models can come and go while requests
are served: gateway and servers are told so in the same words.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

from msgspec import Struct

from slimsched.core.config import CountOrZero, PositiveAmount
from slimsched.models.quality import QualityTable
from slimsched.models.spec import ModelFigures, ModelSpec, Path, PlanTree
from slimsched.serving.domain.request import Key, Trail, key_of


class ModelEntry(Struct, frozen=True, kw_only=True):
    """One model of a running cluster.

    `number` is its place in the cluster's list, which no other model gets while the cluster runs. `source` is
    its folder, or the name of the shipped one; from it a replay can read the model again.
    """

    number: CountOrZero
    source: str
    weight: PositiveAmount = 1.0


class RatedModel(Struct, frozen=True, kw_only=True):
    """What the plans of a running cluster's model are worth, as measured while it served."""

    number: CountOrZero
    name: str
    """What was measured."""
    accuracies: tuple[float, ...]
    """In [0, 1], by plan."""


class ModelsChanged(Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Models were added, which are loaded and warm everywhere; others take no new requests any more.

    Requests to retired models that are under way are still answered by them. Others were `rated`: their plans
    have been measured.
    """

    added: tuple[ModelEntry, ...] = ()
    retired: tuple[CountOrZero, ...] = ()
    rated: tuple[RatedModel, ...] = ()


@dataclass(eq=False, repr=False)
class ServedModel:
    """One of the models that a cluster serves; `number` is its index in the cluster's list.

    `weight` is how much one point of its accuracy counts relative to other models. `folder` holds its files.
    Routers choose by `quality`; runs are scored by `scored`, which was measured on other examples. Both are
    parts of the quality table as it was `measured`.
    """

    spec: ModelSpec
    measured: QualityTable
    figures: ModelFigures
    _: KW_ONLY
    number: int = 0
    weight: float = 1.0
    folder: str = ""

    def __post_init__(self) -> None:
        spec, number = self.spec, self.number
        self.quality, self.scored = self.measured.split()
        self.tree: PlanTree = self.measured.tree
        self.name = spec.name
        self.segments = len(spec.segments)
        self.keys = {step: key_of(number, *step) for step in spec.steps()}
        """The key of every step."""
        self.row_keys = [self.key_of_path(path) if path else None for path in self.tree.paths]
        """The last key of each path of the tree."""
        self.next = {path: (len(path), spec.previous(path), self.tree.kind[path]) for path in self.tree.paths}
        """What comes after each path: the segment, the choice before it, and the kind of path."""
        self.answer_bytes = spec.answer_bytes
        """Bytes of one example's outputs."""
        self._row_bytes = spec.row_bytes

    def numbered(self, number: int, *, weight: float | None = None) -> "ServedModel":
        """Return the same model with another number, and another weight if given."""
        return replace(self, number=number, weight=self.weight if weight is None else weight)

    @property
    def entry(self) -> ModelEntry:
        """Where the model comes from, so that another process can read it."""
        return ModelEntry(number=self.number, source=self.folder or self.name, weight=self.weight)

    def with_quality(self, quality: QualityTable) -> "ServedModel":
        """Return the same model with another quality table."""
        return replace(self, measured=quality)

    def expected_accuracy(self, plan: Path, trail: Trail | None) -> float:
        """Return the chance that an answer is right: by how sure the model was, else by the plan."""
        return trail.sure if trail is not None and trail.sure >= 0.0 else self.quality.accuracy(plan)

    def key_of_path(self, path: Path) -> Key:
        """Return the last key of a path."""
        return self.keys[self.spec.step(path)]

    def legs(self, plan: Path) -> list[Key]:
        """List the keys of a plan or path, in order."""
        return [self.key_of_path(plan[:length]) for length in range(1, len(plan) + 1)]

    def input_bytes(self, segment: int, previous: int, element_bytes: int) -> int:
        """Return the bytes per example of a segment's input: the request's own, or the previous output."""
        if segment == 0:
            return self._row_bytes
        output = self.figures.output
        if previous >= 0:
            return output[segment - 1, previous] * element_bytes
        return max(size for (at, _), size in output.items() if at == segment - 1) * element_bytes

    def key_text(self, key: Key) -> str:
        """Write a key with the names of its choices."""
        names = self.spec.segments
        after = "" if key.previous < 0 else f" after {names[key.segment - 1][key.previous]}"
        onward = "".join(f", then {names[leg.segment][leg.choice]}" for leg in key.legs[1:])
        return f"segment {key.segment} at {names[key.segment][key.choice]}{after}{onward}"


class ModelOutline(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's name, the names of each segment's choices (narrowest first), and its plans.

    These are the names needed to read logs, frames and reports without the model. A plan is written with
    commas, such as '0.5,1.0'. The place of a plan in `plans` is its number in the arrays of a run folder.
    `plans` is empty where they are not needed.
    """

    name: str
    segments: tuple[tuple[str, ...], ...]
    plans: tuple[str, ...] = ()

    def names_of_plan(self, plan: int) -> list[str]:
        """List the names of a plan's choices, one per segment that it runs."""
        return self.plans[plan].split(",")


def outlines(models: Sequence[ServedModel], *, plans: bool = False) -> tuple[ModelOutline, ...]:
    """Outline the models of a cluster, with their plans if asked for."""
    return tuple(
        ModelOutline(
            name=model.name,
            segments=model.spec.segments,
            plans=tuple(map(model.spec.text, model.tree.plans)) if plans else (),
        )
        for model in models
    )
