"""A model as the scheduler sees it: its spec, the tree of its plans, their quality and their figures."""

from slimsched.models.figures import ModelFigures
from slimsched.models.plan_tree import PlanTree
from slimsched.models.quality import QualityTable
from slimsched.models.spec import ModelSpec, Path
from slimsched.serving.domain.key import Key, key_of


class ServedModel:
    """One of the models a cluster serves; `number` is its place in the cluster's list.

    `weight` says how much one point of its accuracy counts beside one of the other models; `folder` is where
    its files lie.
    """

    def __init__(
        self,
        spec: ModelSpec,
        quality: QualityTable,
        figures: ModelFigures,
        *,
        number: int = 0,
        weight: float = 1.0,
        folder: str = "",
    ) -> None:
        self.spec, self.quality, self.figures, self.folder = spec, quality, figures, folder
        self.number, self.weight = number, weight
        self.tree: PlanTree = quality.tree
        self.name = spec.name
        self.segments = len(spec.segments)
        self.keys = {step: key_of(number, *step) for step in spec.steps()}
        """Every key of one segment, by step."""
        self.row_keys = [self.key_of_path(path) if path else None for path in self.tree.paths]
        """The key that each path of the tree ran last."""

    def numbered(self, number: int, *, weight: float | None = None) -> "ServedModel":
        """The same model at another place in the list, or with another weight."""
        return ServedModel(
            self.spec,
            self.quality,
            self.figures,
            number=number,
            weight=self.weight if weight is None else weight,
            folder=self.folder,
        )

    def with_quality(self, quality: QualityTable) -> "ServedModel":
        """The same model with other accuracies."""
        return ServedModel(
            self.spec, quality, self.figures, number=self.number, weight=self.weight, folder=self.folder
        )

    def key_of_path(self, path: Path) -> Key:
        """The key that a path ran last."""
        return self.keys[self.spec.step(path)]

    def legs(self, plan: Path) -> list[Key]:
        """The keys of a plan, or of its beginning, in order."""
        return [self.key_of_path(plan[:length]) for length in range(1, len(plan) + 1)]

    def input_bytes(self, segment: int, previous: int, element_bytes: int) -> int:
        """Bytes of one example's input to a segment: its own tensors, or what the segment before hands on."""
        if segment == 0:
            return self.spec.row_bytes
        output = self.figures.output
        if previous >= 0:
            return output[segment - 1, previous] * element_bytes
        return max(size for (at, _), size in output.items() if at == segment - 1) * element_bytes

    def key_text(self, key: Key) -> str:
        """Write a key with the names of its choices."""
        names = self.spec.segments
        came = "" if key.previous < 0 else f" after {names[key.segment - 1][key.previous]}"
        onward = "".join(f", then {names[leg.segment][leg.choice]}" for leg in key.legs[1:])
        return f"segment {key.segment} at {names[key.segment][key.choice]}{came}{onward}"
